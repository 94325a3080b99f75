"""Tests in which another user takes part."""

from __future__ import annotations

import stat
from pathlib import Path

__all__ = ["let_others_pass"]


def let_others_pass(folder: Path) -> None:
    """Let every user into a test's folder and into those of pytest above it, which are the owner's alone."""
    for path in (folder, *folder.parents):
        mode = stat.S_IMODE(path.stat().st_mode)
        if not mode & stat.S_IXOTH:
            path.chmod(mode | 0o055)
