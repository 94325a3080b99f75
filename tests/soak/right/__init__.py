"""Checks of promises that hold under races, partitions and damage: `./scripts/soak --right`.

Each module here checks one promise many times, at points that follow from a seed, and offers `check(context)`, which
answers counters and raises `Violation` at the first broken promise.
"""
