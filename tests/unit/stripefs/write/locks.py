"""Locks in a local directory: their age, and the files that are there."""

import os


def age(tmp_path, seconds, name=".file.stripefs-lock"):
    """The lock is as old as if it had been renewed that long ago by the store's clock."""
    found = (tmp_path / name).stat()
    os.utime(tmp_path / name, ns=(found.st_atime_ns, found.st_mtime_ns - int(seconds * 1e9)))


def names(tmp_path):
    return {path.name for path in tmp_path.iterdir()}
