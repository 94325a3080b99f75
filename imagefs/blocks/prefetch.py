"""Fetches blocks before anybody asks for them, in a given order, giving way to those who do.

Ranges of neighbours, several at once. A range begins only when no reader's own fetch is under way, when the way to the
store has room (`imagefs.blocks.prefetch_policy`), when the disk has kept up with what came before, and when the rate
allows it. A block that a reader wants is fetched for it at once, or waited for where it is under way already; when its
turn comes here it is skipped. Blocks are fetched ahead to be kept: when the disk has no room left but that of blocks in
use, or does not work, this ends early rather than drive out what was needed more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from imagefs.blocks.prefetch_policy import BURST, FetchOrder, Pace
from imagefs.format.index import BLOCK
from stripefs.errors import Abandoned

if TYPE_CHECKING:
    from imagefs.blocks.device import BlockDevice
    from imagefs.blocks.fetcher import BlockFetch

__all__ = ["FetchReport", "fetch_ahead"]

LARGE = 1 << 20
"""Stored bytes from which on a range's size does not matter: a request takes 1.3 ms of a processor, a MiB 4."""

FEW = 2
"""Ranges that keep the way full where larger ones are worth more than further ones."""


@dataclass(slots=True)
class FetchReport:
    """The result of a prefetch.

    blocks, bytes, stored: those that came from the store, their bytes, and the bytes that travelled. copied: blocks
    found elsewhere on this machine. skipped: blocks that were here already. failed: blocks that could not be had. full:
    whether it ended early because the disk took no more.
    """

    blocks: int = 0
    bytes: int = 0
    stored: int = 0
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    full: bool = False
    seconds: float = 0.0


async def fetch_ahead(target: BlockDevice, blocks: Iterable[int], at_once: int, rate: float) -> FetchReport:
    """Fetch `blocks` in this order, `at_once` ranges under way, `rate` stored bytes a second, 0 for any.

    When cancelled, what is under way still arrives. Raises Abandoned when nothing can be fetched any more.
    """
    report = FetchReport()
    order = FetchOrder(blocks, target.index)
    begun = trio.current_time()
    pace = Pace(rate, begun)
    most = int(rate * BURST) if rate else 1 << 62
    slots = trio.Semaphore(at_once)

    async def arrive(fetches: Sequence[tuple[int, BlockFetch[BlockDevice]]]) -> None:
        for _, fetch in fetches:
            await fetch.finished.wait()
            if fetch.data is None:
                report.failed += 1
            elif fetch.copied:
                report.copied += 1
            else:
                report.blocks += 1
                report.bytes += len(fetch.data)
                report.stored += fetch.place.stored
        slots.release()

    async with trio.open_nursery() as nursery:
        while True:
            await slots.acquire()
            size = max(BLOCK, min(most, max(_size(target.upstream.link.window, at_once), target.upstream.least)))
            if not await _turn(target, pace, size):
                break
            run = order.take(size, target.lacks)
            if run and not await target.has_room(sum(place.length for _, place in run)):
                report.full = True
                break
            if run:
                pace.spend(sum(place.stored for _, place in run), trio.current_time())
                nursery.start_soon(arrive, target.begin(run))
            elif order.ended:
                break
            else:
                slots.release()
                await trio.lowlevel.checkpoint()
    if not target.running:
        raise Abandoned("the block store is not running")
    report.skipped = order.skipped
    report.seconds = trio.current_time() - begun
    return report


def _size(window: int, at_once: int) -> int:
    """Stored bytes of a range: as many ranges as may be under way fill the window, unless that makes them small."""
    return max(window // at_once, min(LARGE, window // FEW))


async def _turn(target: BlockDevice, pace: Pace, size: int) -> bool:
    """Wait until a range of `size` stored bytes may begin; False when none will any more."""
    while target.running:
        delay = pace.delay(trio.current_time())
        if delay:
            await trio.sleep(delay)
        elif target.upstream.demand or target.backlogged or not target.upstream.link.has_room(size):
            await target.changed.park()
        else:
            return True
    return False
