"""Dependency snapshots of containers: installed by the image's own Python, and kept as one more layer of the image."""
