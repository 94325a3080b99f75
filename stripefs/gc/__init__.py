"""Garbage collection of a source: deferred deletes, orphans of crashed writers, recovery from fsync records."""
