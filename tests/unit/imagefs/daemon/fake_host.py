"""A host of attachments that do nothing, for parts of the daemon that look after them."""

from __future__ import annotations

from typing import Any

from imagefs.daemon.protocol import AttachRequest
from imagefs.daemon.state import Attachment, DaemonState

__all__ = ["FakeHost", "attachment"]


def attachment(identifier: str, **values: Any) -> Attachment:
    """One of an image without devices."""
    digest = "d" * 64
    least = {"name": "s#t", "store": {"url": "/nowhere"}, "image": digest, "base": digest, "metadata": "/m"}
    return Attachment(identifier, **{**least, "devices": (), "since": 1.0, **values})


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
