"""Daemons that the tests of a module share. Each test finds a host that has installed nothing yet, and leaves it so."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from stripefs.fuse import kernel
from tests.support.images.faults import ensure, until_nothing_is_left
from tests.tools.imagefs_daemon import Service, commands, eventually

__all__ = ["SETTINGS", "publishers", "visit"]

SETTINGS = {"background_rate": "0", "io_timeout": "10"}
"""Of daemons, unless a test says otherwise."""


class _Guest(Service):
    """The daemon of `host` with an environment, a log and commands of one test's own."""

    def __init__(self, host: Service) -> None:
        super().__init__(host.folder)
        self.environment = dict(host.environment)
        self._before = host.log()

    def log(self) -> str:
        """The lines that were logged since the test began."""
        return super().log().removeprefix(self._before)


@contextlib.contextmanager
def visit(host: Service, folder: Path) -> Iterator[Service]:
    """The daemon as a test sees it whose own folder this is. It runs.

    Blocks that it fetched for others are still there: tests that damage a store have packages of their own in it.
    """
    if not host.answers():
        ensure(host)
    shutil.rmtree(f"{host.settings.cache}/deps", ignore_errors=True)
    guest = _Guest(host)
    try:
        yield guest
    finally:
        guest.end_commands()
        eventually(lambda: not publishers(host), "the end of all publishers")
        for mount in reversed(kernel.mounts()):
            place = Path(mount.path)
            ours = place.is_relative_to(folder) or place.is_relative_to(host.folder)
            if ours and mount.path != host.settings.devices:
                kernel.unmount(mount.path, kernel.MNT_DETACH)
        if host.answers():
            until_nothing_is_left(host)


def publishers(host: Service) -> list[int]:
    """Processes that publish, in the background, what a start of this host has installed."""
    ours = f"IMAGEFS_RUNTIME={host.settings.runtime}".encode()
    found = []
    for pid, words in commands():
        if "imagefs.deps.publish" in words:
            with contextlib.suppress(OSError):  # it has ended
                if ours in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
    return found
