"""Hosts of attachments: one that does nothing, for parts of the daemon that look after them, and a worker's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from imagefs.daemon.attachments import Attachments
from imagefs.daemon.protocol import Attached, AttachedDevice, AttachRequest
from imagefs.daemon.state import Attachment, DaemonState
from imagefs.settings import DaemonSettings
from stripefs.fuse.state_memory import MemoryJournal

__all__ = ["FakeHost", "OpenJournal", "attached", "attachment", "running_host"]

OpenJournal = Callable[[], MemoryJournal]
"""Opens the memory that a supervisor keeps, as each worker does."""


@asynccontextmanager
async def running_host(folder: Path, journal: MemoryJournal, **settings: Any) -> AsyncIterator[Attachments]:
    """A worker's host, until it is killed at the end of the block."""
    given = {"io_timeout": 10.0, "background_rate": 0, **settings}
    host = Attachments(DaemonSettings(cache=str(folder / "cache"), runtime=str(folder / "run"), **given), journal)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        try:
            yield host
        finally:
            nursery.cancel_scope.cancel()


def attachment(identifier: str, **values: Any) -> Attachment:
    """One of an image without devices."""
    digest = "d" * 64
    least = {"name": "s#t", "store": {"url": "/nowhere"}, "image": digest, "base": digest, "metadata": "/m"}
    return Attachment(identifier, **{**least, "devices": (), "since": 1.0, **values})


def attached(identifier: str) -> Attached:
    """The answer about a lazy image with one device."""
    devices = (AttachedDevice("cold", "/d", local=False),)
    return Attached(identifier, "d" * 64, "/m", devices, None, {}, offline=False, base="d" * 64, upper="/u")


class FakeHost:
    """`known` outlives workers."""

    def __init__(self, *attachments: Attachment) -> None:
        self.state = DaemonState()
        self.known = self.state.attachments
        self.known.update({one.id: one for one in attachments})

    def change(self, attachment: Attachment, **values: Any) -> None:
        attachment.change(values)

    def release(self, attachment: Attachment) -> None:
        del self.known[attachment.id]

    async def note_use(self, request: AttachRequest) -> None:
        """No store keeps it."""
