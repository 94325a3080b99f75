"""Small files of the cache that a later start may want, and that nobody misses when they are gone."""

from __future__ import annotations

import time
from pathlib import Path

from stripefs.osutil import atomic_file

__all__ = ["keep"]

_KEPT = 30 * 24 * 3600.0
"""Seconds; whoever asks later learns it anew."""


def keep(path: Path, text: str) -> None:
    """Write a file that appears as a whole, and remove those beside it that are old. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.encode())
    for old in path.parent.iterdir():
        if time.time() - old.stat().st_mtime > _KEPT:
            old.unlink(missing_ok=True)
