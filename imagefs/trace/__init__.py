"""Traces of starts and the plans made of them: record, resolve, match, merge, plan. Policy is pure."""
