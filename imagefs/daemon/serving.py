"""The devices of a host's images as its FUSE mount has them: what the kernel holds, and what it reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from imagefs.daemon.ledger import Ledger
from imagefs.daemon.opened import Opened
from imagefs.errors import BlockUnavailable, DocumentUnreadable
from stripefs.store.base import Buffer

__all__ = ["Serving"]

_log = logging.getLogger(__name__)


class Serving:
    """A `Source` of `imagefs.daemon.devices`: the devices in `opened`.

    touched: told of each read (device, offset, length). served: told of each that was answered (device). failed: told
    of each block that could not be had.
    space: bytes that the cache may take, and takes.
    """

    def __init__(
        self,
        ledger: Ledger,
        opened: Opened,
        touched: Callable[[str, int, int], None],
        served: Callable[[str], None],
        failed: Callable[[str, BlockUnavailable], None],
        space: Callable[[], tuple[int, int]],
    ) -> None:
        self._ledger = ledger
        self._opened = opened
        self._touched = touched
        self._served = served
        self._failed = failed
        self._space = space

    def served(self) -> Collection[str]:
        return self._ledger.state.known

    def remembered(self) -> Collection[str]:
        return self._ledger.state.lookups

    def size(self, index: str) -> int | None:
        facts = self._ledger.state.known.get(index)
        return int(facts["size"]) if facts is not None else None

    def space(self) -> tuple[int, int]:
        return self._space()

    def looked_up(self, index: str) -> None:
        self._ledger.record({"lookup": index})

    def forgotten(self, index: str, count: int) -> None:
        self._ledger.record({"forget": [index, count]})
        self._opened.close_unused()

    def opened(self, index: str) -> int:
        handle = self._ledger.state.next_handle
        self._ledger.record({"open": [handle, index]})
        return handle

    def held(self, handle: int) -> str | None:
        return self._ledger.state.handles.get(handle)

    def released(self, handle: int) -> None:
        self._ledger.record({"release": handle})
        self._opened.close_unused()

    async def read(self, index: str, offset: int, length: int) -> Buffer:
        device = self._opened.devices.get(index) or await self._opened.open_again(index)
        if index not in self._ledger.state.pages:
            self._ledger.record({"pages": index})
        self._touched(index, offset, length)
        try:
            try:
                data = await device.read(offset, length)
            except DocumentUnreadable as error:
                _log.warning("%s; fetching it anew", error)
                data = await (await self._opened.renew(index)).read(offset, length)
        except BlockUnavailable as error:
            self._failed(index, error)
            raise
        self._served(index)
        return data
