"""Tests in which another user takes part."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["AS_NOBODY", "NOBODY", "let_others_mount", "open_folder"]

NOBODY = 65534
AS_NOBODY = (
    *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)
"""Before a command of root's, which nobody then runs, with the one capability that lets nobody read this checkout."""


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter. Those of pytest are the owner's alone; each pytest that starts sees to it."""
    with tempfile.TemporaryDirectory(prefix="bootseer-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def let_others_mount(folder: Path) -> str:
    """Shell commands after which every user may open /dev/fuse, in a mount namespace of one's own: see `unshared`."""
    devices = folder / "devices"
    devices.mkdir()
    device = f"mount -t tmpfs none {devices} && mknod -m 666 {devices}/fuse c 10 229"
    return f"{device} && mount --bind {devices}/fuse /dev/fuse"
