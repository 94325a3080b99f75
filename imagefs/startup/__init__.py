"""Profiles of starts of jobs: events, how they are collected, what follows from them, and reports."""
