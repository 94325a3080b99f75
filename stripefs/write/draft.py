"""One new version of one file, from its first byte to its publication."""

from __future__ import annotations

from stripefs.store.base import Attributes, Buffer, Status
from stripefs.write.policy import Layout

__all__ = ["Draft"]


class Draft:
    """Made by `Drafts.begin`. All calls may come from several tasks; those that change it take turns.

    An error of a background send is kept and raised, once each, by the next `write`, `sync` and `publish`; a draft
    that has failed can only be abandoned (or rewound), every `publish` of it raises.
    """

    path: bytes
    """Where it will be published; `move` changes it."""
    length: int
    """Bytes written so far, published or not: where the next write must begin."""
    published: Status | None
    """The version published last by this draft, None before the first."""
    layout: Layout | None
    """None until enough is written to decide (files below `policy.small` are plain)."""

    @property
    def dirty(self) -> bool:
        """Whether there is something that the next `publish` makes visible (a new, empty file counts until then)."""
        raise NotImplementedError

    async def write(self, offset: int, data: Buffer) -> None:
        """Take all of `data`; returns when it is in memory, which waits while the memory of the mount is full.

        `data` must not change afterwards when it is `bytes` (kept without a copy); other buffers are copied.
        Raises NotSequential (nothing taken) unless offset == length; the sticky error.
        """

    async def read(self, offset: int, size: int) -> bytes:
        """Exactly the bytes [offset, min(offset + size, length)) as written so far, published or not."""
        raise NotImplementedError

    async def sync(self) -> None:
        """fsync: all of it acknowledged by every replica's host, and a record beside the file names it."""

    async def publish(self, final: bool) -> Status:
        """Make what is written visible at `path` as one version, by one atomic step, durably; what it is now.

        final: the draft is done and lets its lock go, in any case, also when this raises. Else writing may go on, and
        the next publication makes the next version. Publishing what is not dirty changes nothing.
        """
        raise NotImplementedError

    async def rewind(self) -> None:
        """Drop what is unpublished: the next write is at 0 and the next publication replaces the file as a whole."""

    async def abandon(self) -> None:
        """Drop what is unpublished, and the lock. Never raises; safe to call twice or after `publish(final=True)`."""

    async def move(self, path: bytes) -> None:
        """The file was (or is to be) renamed to `path`: publish there from now on. Takes that path's lock: Busy."""

    def detach(self) -> None:
        """The name was unlinked or renamed over: writing goes on, nothing will be published, the lock is let go."""

    def set_attributes(self, attributes: Attributes) -> None:
        """What the next publication gives the file; None fields stay as they are."""
