"""A document that is written before it is needed, as a hidden file, so that one rename later it stands.

Writing one takes from 20 ms to half a second: the last parts of a file are being acknowledged as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from stripefs.write.contents import STOPPING
from stripefs.write.sender import Sender
from stripefs.write.shipment import Shipment

__all__ = ["Prepared"]


@dataclass(frozen=True, slots=True)
class _Sent:
    document: bytes
    shipment: Shipment


class Prepared:
    """At most one document at a time. place names each try of it; block_size is its file's, 0 for the store's own."""

    def __init__(self, sender: Sender, place: Callable[[], tuple[bytes, int]], block_size: int = 0) -> None:
        self._sender = sender
        self._place = place
        self._block_size = block_size
        self._sent: _Sent | None = None
        self.in_vain = 0
        """Documents that were not the one that was needed in the end."""

    def begin(self, document: bytes) -> None:
        """Write the document that will be needed, as it seems, unless one was begun."""
        if self._sent is None:
            self._sent = self._send(document)

    async def take(self, document: bytes) -> bytes:
        """The path of a file of this document; the file is the caller's. Raises why it cannot be written.

        Another document that was begun must have been dropped.
        """
        if self._sent is not None and (path := await self._ended(self._sent)) is not None:
            return path
        self._sent = sent = self._send(document)
        path = await self._ended(sent)
        if path is None:
            assert sent.shipment.error is not None
            raise sent.shipment.error
        return path

    async def _ended(self, sent: _Sent) -> bytes | None:
        """Where it stands, which is the caller's affair then; None when it could not be written."""
        await sent.shipment.ended.wait()
        self._sent = None
        return sent.shipment.path if sent.shipment.landed else None

    async def drop(self, but: bytes | None = None) -> list[bytes]:
        """Forget what was begun and not taken, unless it is the document `but`; paths of what stands of it."""
        sent = self._sent
        if sent is None or sent.document == but:
            return []
        sent.shipment.cancel()
        with trio.move_on_after(STOPPING):  # what comes later removes itself, or is found by gc
            await sent.shipment.ended.wait()
        self._sent = None
        self.in_vain += 1
        return [sent.shipment.path] if sent.shipment.landed else []

    def _send(self, document: bytes) -> _Sent:
        shipment = Shipment([document], len(document), self._place, block_size=self._block_size)
        self._sender.submit(shipment)
        return _Sent(document, shipment)
