"""Dependency snapshots: what a job installs at start, kept as an image and mounted the next time."""
