"""Learns where the blocks of one open file lie, as far as its readers and look-ahead go."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from stripefs.errors import StoreError
from stripefs.executor import Executor
from stripefs.read.policy import FilePlan, Planner
from stripefs.store.base import Block, Handle

__all__ = ["Locator"]

log = logging.getLogger(__name__)

LOCATE_AHEAD = 2 << 30
"""Bytes of a file whose blocks are asked for at once at most: twice the largest default budget."""

LOCATE_FIRST = 256 << 20
"""And the first time; then as many as are known already. To say where a striped file lies its parts must be opened, of
which a reader of the header alone should not wait for more than the first row."""

LOCATE_PAUSE = 2.0
"""Seconds before blocks that could not be located are asked for again without a reader that waits for them."""


class Locator:
    """Asks `handle` where the blocks of `plan` lie and tells the planner.

    A metadata service that is away is waited for as long as `executor` says.
    """

    def __init__(
        self,
        name: str,
        handle: Handle,
        plan: FilePlan,
        planner: Planner,
        executor: Executor,
    ) -> None:
        self.busy = False
        """Whether blocks are being asked for that no reader waits for: set by who begins that."""
        self._name = name
        self._handle = handle
        self._plan = plan
        self._planner = planner
        self._executor = executor
        self._lock = trio.Lock()
        self._asked = 0

    async def locate(self, offset: int, length: int) -> Sequence[Block]:
        """The blocks that overlap [offset, offset + length). Waits for a metadata service that is away."""
        return await self._ask(self._handle.locate, offset, length)

    async def placed(self, offset: int, length: int) -> Sequence[Block]:
        """As `locate`, without near hosts."""
        return await self._ask(self._handle.placed, offset, length)

    async def _ask(self, look: Callable[[int, int], Sequence[Block]], offset: int, length: int) -> Sequence[Block]:
        return await self._executor.call(f"locating blocks of {self._name}", look, offset, length, lane="location")

    async def known(self, offset: int, end: int) -> None:
        """Return when all blocks that overlap [offset, end) are known. Raises what `Handle.locate` raises."""
        while True:
            missing = self._plan.blocks.missing(offset, end)
            if missing is None:
                return
            async with self._lock:
                if self._plan.blocks.missing(missing, missing + 1) is None:
                    continue
                ahead = min(LOCATE_AHEAD, max(LOCATE_FIRST, self._asked))
                length = min(ahead, self._plan.length - missing)
                self._asked += length
                self._planner.located(self._plan, await self.locate(missing, length))
                # Counting would not do: what is known already may come back in other pieces.
                if self._plan.blocks.missing(missing, missing + 1) is not None:
                    raise StoreError(f"the store does not say where byte {missing} of this file lies")

    async def look_ahead(self, offset: int) -> None:
        """Learn the blocks from `offset` on for look-ahead; a failure shows when a reader gets there."""
        await self._unasked(self.known, offset, offset + 1)

    async def look_again(self, offset: int) -> None:
        """Learn where the block at `offset` lies now: replicas move while a file is open for days."""

        async def ask() -> None:
            self._planner.located(self._plan, await self.locate(offset, 1))

        await self._unasked(ask)

    async def _unasked(self, work: Callable[..., Awaitable[None]], *args: int) -> None:
        try:
            await work(*args)
        except Exception as error:  # noqa: BLE001  # as in `fetch`: a client's bug must not end the reader of all files
            log.warning("locating blocks of %s: %s; look-ahead pauses", self._name, error)
            await trio.sleep(LOCATE_PAUSE)
        finally:
            self.busy = False
