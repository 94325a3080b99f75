"""The file systems of images that are whole on this machine: each is mounted once, and shown by all who use it.

Only what is read from local files alone is mounted here: a worker that waited for its own devices could never be
replaced. A tree is kept for a while when nobody uses its image any more, so that the next start finds in memory what
the last one read; its files stay as they are that long, whatever room is needed. What is shown outlives this process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import trio

from imagefs.plane import shared
from stripefs.executor import Lane

__all__ = ["Tree", "Trees"]

_log = logging.getLogger(__name__)

LINGER = 60.0
"""Seconds that a tree is kept without a use."""

_LOOK = 10.0
"""Seconds between looks."""

_Key = tuple[object, ...]


@dataclass(slots=True)
class Tree:
    """A mount that is held. used_until: the last moment at which its image was in use, None while it is."""

    image: str
    descriptor: int
    device: str
    used_until: float | None = None

    @property
    def path(self) -> str:
        """Where other processes find the descriptor."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"


class Trees:
    """Those of one worker. in_use: the digests of the images that somebody uses."""

    def __init__(self, in_use: Callable[[], Collection[str]]) -> None:
        self._in_use = in_use
        self._trees: dict[_Key, Tree] = {}
        self._lock = trio.Lock()
        self._lane = Lane("mounts", 2)

    def __len__(self) -> int:
        return len(self._trees)

    async def of(self, image: str, metadata: str, devices: Sequence[str]) -> Tree | None:
        """The tree of an image in use whose files these are; None where there can be none."""
        if os.geteuid() != 0:
            return None
        try:
            async with self._lock:
                what = f"mounting {image[:12]}"
                return await self._lane.run(what, self._find, image, metadata, devices, abandon=False)
        except OSError as error:  # the kernel is too old, a sandbox is in the way, the cache lies on an overlay
            _log.debug("%s is mounted for each who uses it: %s", image[:12], error.strerror)
            return None

    async def run(self) -> None:
        """Let go of what nobody uses; until cancelled, then of all."""
        try:
            while True:
                await trio.sleep(_LOOK)
                await self.tidy(trio.current_time())
        finally:
            for key in list(self._trees):
                os.close(self._trees.pop(key).descriptor)

    async def tidy(self, now: float) -> None:
        in_use = self._in_use()
        for key, tree in list(self._trees.items()):
            if tree.image in in_use:
                tree.used_until = None
            elif tree.used_until is None:
                tree.used_until = now
            elif now - tree.used_until > LINGER:
                del self._trees[key]
                # The last to let go waits until all pages of the file system are given back.
                await self._lane.run("letting a mount go", os.close, tree.descriptor)

    def _find(self, image: str, metadata: str, devices: Sequence[str]) -> Tree:
        """Raises OSError."""
        key = (metadata, *((path, _version(path)) for path in devices))
        if key not in self._trees:
            descriptor = shared.make(metadata, devices)
            tree = Tree(image, descriptor, shared.device_of(descriptor))
            try:
                os.close(shared.copy(tree.path, tree.device))
            except OSError:
                os.close(descriptor)
                raise
            self._trees[key] = tree
        tree = self._trees[key]
        tree.used_until = None
        return tree


def _version(path: str) -> tuple[int, int]:
    """Other after every change of the file: what was read before may be in the memory of an older mount."""
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns
