"""The file systems of images: each is mounted once, and shown by all who use it.

`MountPool` mounts images that are whole on this machine. Only what is read from local files alone is mounted here: a
worker that waited for its own devices could never be replaced. So a lazy image is mounted by the first client that uses
it, and `ClientMounts` tells those that come later where to copy that mount from.

A mount of the pool is kept for a while when nobody uses its image any more, so that the next start finds in memory what
the last one read; its files stay as they are that long, whatever room is needed. A mount that is shown outlives this
process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from imagefs.daemon.protocol import MountedTree
from imagefs.daemon.requests import ShownRequest
from imagefs.daemon.state import Attachment
from imagefs.plane import kernel_mounts
from stripefs.background import supervise
from stripefs.errors import ServiceDown
from stripefs.executor import Lane

if TYPE_CHECKING:
    from imagefs.daemon.attachments import Attachments

__all__ = ["ClientMounts", "MountPool", "PooledMount"]

_log = logging.getLogger(__name__)

LINGER = 60.0
"""Seconds that a mount is kept without a use."""

_LOOK = 10.0
"""Seconds between looks."""

_MOUNTS_WITHIN = 20.0
"""Seconds that a mount may take: it reads the metadata from the cache's disk."""

_SHOWN_WITHIN = 1.0
"""Seconds that a client waits for the mount of another that came before it."""

_MountKey = tuple[object, ...]


@dataclass(slots=True)
class PooledMount:
    """A mount that is held. tree: as other processes find it. used_until: the last moment at which its image was in
    use, None while it is."""

    image: str
    descriptor: int
    tree: MountedTree
    used_until: float | None = None


class MountPool:
    """The pooled mounts of one worker. in_use: the digests of the images that somebody uses."""

    def __init__(self, in_use: Callable[[], Collection[str]]) -> None:
        self._in_use = in_use
        self._mounts: dict[_MountKey, PooledMount] = {}
        self._lock = trio.Lock()
        self._lane = Lane("mounts", 2)

    def __len__(self) -> int:
        return len(self._mounts)

    async def of(self, image: str, metadata: str, devices: Sequence[str]) -> MountedTree | None:
        """The mount of an image in use whose files these are; None where there can be none."""
        if os.geteuid() != 0:
            return None
        try:
            async with self._lock:
                what = f"mounting {image[:12]}"
                return await self._lane.run(what, self._find, image, metadata, devices, timeout=_MOUNTS_WITHIN)
        except (OSError, ServiceDown) as error:
            # The kernel is too old, a sandbox is in the way, the cache lies on an overlay or on a disk that hangs.
            _log.debug("%s is mounted for each who uses it: %s", image[:12], error)
            return None

    async def run(self) -> None:
        """Release unused mounts; until cancelled, then all."""
        try:
            await supervise("unmounting images that nobody uses", self._tidy_now_and_then)
        finally:
            for key in list(self._mounts):
                os.close(self._mounts.pop(key).descriptor)

    async def _tidy_now_and_then(self) -> None:
        while True:
            await trio.sleep(_LOOK)
            await self.tidy(trio.current_time())

    async def tidy(self, now: float) -> None:
        in_use = self._in_use()
        for key, mount in list(self._mounts.items()):
            if mount.image in in_use:
                mount.used_until = None
            elif mount.used_until is None:
                mount.used_until = now
            elif now - mount.used_until > LINGER:
                del self._mounts[key]
                # The last to let go waits until all pages of the file system are given back.
                await self._lane.run("letting a mount go", os.close, mount.descriptor)

    def _find(self, image: str, metadata: str, devices: Sequence[str]) -> MountedTree:
        """Raises OSError."""
        key = (metadata, *((path, _version(path)) for path in devices))
        if key not in self._mounts:
            descriptor = kernel_mounts.make(metadata, devices)
            tree = MountedTree(f"/proc/{os.getpid()}/fd/{descriptor}", kernel_mounts.device_of(descriptor))
            mount = PooledMount(image, descriptor, tree)
            try:
                os.close(kernel_mounts.copy(*tree))
            except OSError:
                os.close(descriptor)
                raise
            if self._mounts.setdefault(key, mount) is not mount:  # a call that nobody waited for any more was first
                os.close(descriptor)
        mount = self._mounts[key]
        mount.used_until = None
        return mount.tree


def _version(path: str) -> tuple[int, int]:
    """Other after every change of the file: what was read before may be in the memory of an older mount."""
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns


class ClientMounts:
    """The mounts by which the clients of `uses` show lazy images. A mount that is answered may have gone, so its user
    looks again."""

    def __init__(self, uses: Attachments) -> None:
        self._uses = uses
        self._mounting: set[str] = set()  # attachments whose clients are about to mount, and to say where
        self._changed = trio.Event()

    async def of(self, attachment: Attachment) -> MountedTree | None:
        """A mount of the same image and devices; None where the client is to mount it, and to tell by `shown`."""
        with trio.move_on_after(_SHOWN_WITHIN):
            while others := self._like(attachment):
                for other in reversed(others):
                    if other.shown:
                        return MountedTree(*other.shown)
                if not any(other.id in self._mounting for other in others):
                    break
                await self._changed.wait()
        self._mounting.add(attachment.id)
        return None

    async def shown(self, request: ShownRequest) -> None:
        """A client says where it has its mount; "" where others cannot copy it."""
        attachment = self._uses.state.attachments.get(request.id)
        if attachment is not None:
            self.tell(attachment, request.path, request.device)

    def tell(self, attachment: Attachment, path: str, device: str) -> None:
        """Note where the attachment is mounted; "" for either where others cannot copy the mount."""
        if path and device:
            self._uses.change(attachment, shown=[path, device])
        self.over(attachment)

    def over(self, attachment: Attachment) -> None:
        """Its client is not about to mount any more."""
        self._mounting.discard(attachment.id)
        self._changed.set()
        self._changed = trio.Event()

    def _like(self, attachment: Attachment) -> list[Attachment]:
        """Other uses of the same image and devices, in the same mount namespace, those that began last at the end."""

        def key(one: Attachment) -> _MountKey:
            return (one.metadata, one.namespace, *(device.index for device in one.devices))

        attached = self._uses.state.attachments.values()
        return [one for one in attached if one.id != attachment.id and key(one) == key(attachment)]
