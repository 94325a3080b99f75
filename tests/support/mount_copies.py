"""Mounts of which other mount namespaces have a copy.

Where the machine's mounts are private, as in most containers, such a copy stays when the mount is taken away here, and
with it the FUSE connection: its supervisor waits for a second and then says, rightly, that it was in use. Every new
mount namespace beside a test pins its mounts in this way, if only for a moment: another test, `imagefs run`, a
container of somebody else. Where mounts are shared, copies go as the mount goes.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tests.support.waiting import PATIENCE

__all__ = ["until_unpinned"]


def until_unpinned(mountpoint: Path) -> None:
    """Wait until only we have what is mounted there, but not for ever: some namespaces stay."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and _is_pinned(mountpoint):
        time.sleep(0.05)


def _is_pinned(mountpoint: Path) -> bool:
    lines = {line[0]: line for line in _table(Path("/proc/self"))}
    here = [line for line in lines.values() if line[4] == str(mountpoint)]
    if not here or any(field.startswith("shared:") for field in lines[here[-1][1]][6:]):
        return False
    device, seen = here[-1][2], {_namespace(Path("/proc/self"))}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if (namespace := _namespace(process)) not in seen:
                seen.add(namespace)
                if any(line[2] == device for line in _table(process)):
                    return True
    return False


def _namespace(process: Path) -> int:
    return (process / "ns/mnt").stat().st_ino


def _table(process: Path) -> list[list[str]]:
    """Mounts as proc_pid_mountinfo(5) has them: id, parent, device, root, mountpoint, options, how it propagates…"""
    return [line.partition(" - ")[0].split(" ") for line in (process / "mountinfo").read_text().splitlines()]
