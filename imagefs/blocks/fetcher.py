"""Fetches blocks: each once at a time, for all who want it, in ranges of neighbours, until its content is right.

A *block fetch* is one block's content under way from one store, known by its digest; everyone who wants it waits for
the same one. A *range request* is one range of a pack, read in a thread, that carries several. Blocks that arrive are
unpacked and checked there too. A block that is not what it must be is fetched again, alone, `TRIES` times in all; so is
what fails in a way that another try may not mend. Errors that say they pass are tried again with growing pauses until
the time of those who wait is up.

A request that a reader's read began goes at once. One that fetches ahead waits, before it is tried again, until no
reader's request is under way; its beginning is held back in the same way by whoever begins it
(`imagefs.blocks.prefetch`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from imagefs.blocks.prefetch import Run
from imagefs.blocks.source import Arrived, Copy, load, read_copies
from imagefs.blocks.stats import BlockStats
from imagefs.blocks.upstream import SWITCH_AFTER, MirrorUpstream, Upstream, Upstreams
from imagefs.blocks.writeback import BlockMemory
from imagefs.errors import DamagedObject
from imagefs.format.index import BlockLocation, Pack
from stripefs.background import contain
from stripefs.errors import Abandoned, HostFailed, ServiceDown, StoreError, StripefsError, Transient
from stripefs.executor import Lane
from stripefs.retry import Backoff, Seldom

__all__ = ["BlockFetch", "Fetcher"]

_log = logging.getLogger(__name__)
TRIES = 3
COPIES = 4
"""Threads that look on this machine."""

RANGE = 1 << 20
"""Stored bytes of one range request for readers: the largest read of the kernel. Those ahead are as long as asked."""

_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class BlockFetch(Generic[_T]):
    """One block under way. `targets`: on whose behalf, and as which block of that device it is to be kept."""

    home: Upstream
    """The store that was preferred when it began: with the digest the key under which others join it."""
    upstreams: Upstreams
    place: BlockLocation
    demand: bool
    deadline: float
    targets: list[tuple[_T, int]] = field(default_factory=list)
    finished: trio.Event = field(default_factory=trio.Event)
    data: bytes | None = None
    error: Exception | None = None
    copied: bool = False
    tries: int = 0
    request: _RangeRequest[_T] | None = None
    last_upstream: Upstream | None = None
    """The upstream that its bytes were last asked of."""
    trouble: tuple[str, str] | None = None
    """The first failure on its way, as the cause of a stall and its host."""

    def join(self, *, demand: bool, deadline: float) -> None:
        """Somebody else waits for it too, until `deadline`."""
        self.demand |= demand
        self.deadline = max(self.deadline, deadline)
        if self.request is not None:
            self.request.scope.deadline = max(self.request.scope.deadline, deadline)


@dataclass(eq=False, slots=True)
class _RangeRequest(Generic[_T]):
    """A range under way. `pending`: its fetches that have not finished, in the order of the pack."""

    upstreams: Upstreams
    upstream: Upstream
    """The store that is asked now."""
    pack: Pack
    pending: list[BlockFetch[_T]]
    demand: bool
    scope: trio.CancelScope

    @property
    def wanted(self) -> bool:
        """Tells whether a reader waits for any of it, even where it was begun ahead of readers."""
        return self.demand or any(fetch.demand for fetch in self.pending)


class Fetcher(Generic[_T]):
    """All blocks under way of a block store.

    find: how a block can be had without a store, None when it cannot. keep: called for each target with the block
    that has arrived, before those who wait are woken. changed: woken when a range ends. nursery: where requests run;
    None while nothing can be fetched.
    """

    def __init__(
        self,
        memory: BlockMemory,
        stats: BlockStats,
        io_timeout: float,
        find: Callable[[bytes], Copy | None],
        keep: Callable[[_T, int, bytes, Arrived, bool], None],
        changed: trio.lowlevel.ParkingLot,
    ) -> None:
        self.nursery: trio.Nursery | None = None
        self._changed = changed
        self._memory = memory
        self._stats = stats
        self._io_timeout = io_timeout
        self._find = find
        self._keep = keep
        self._under_way: dict[tuple[Upstream, bytes], BlockFetch[_T]] = {}
        self._copying = Lane("copies", COPIES)
        self._warn = Seldom(_log)

    def __len__(self) -> int:
        return len(self._under_way)

    def under_way(self, upstreams: Upstreams, digest: bytes) -> BlockFetch[_T] | None:
        return self._under_way.get((next(iter(upstreams)), digest))

    def request(
        self, who: _T, upstreams: Upstreams, packs: Sequence[Pack], blocks: Run, *, demand: bool
    ) -> list[tuple[int, BlockFetch[_T]]]:
        """The fetches of these blocks; those that were not under way are begun. `packs`: those that their places name.

        demand: a reader waits. Returns at once; a fetch has `data` or `error` once `finished` is set.
        """
        deadline = trio.current_time() + self._io_timeout
        fetches, new, home = [], [], next(iter(upstreams))
        for block, place in blocks:
            fetch = self._under_way.get((home, place.digest))
            if fetch is None:
                fetch = self._under_way[home, place.digest] = BlockFetch(home, upstreams, place, demand, deadline)
                new.append(fetch)
            else:
                fetch.join(demand=demand, deadline=deadline)
            if (who, block) not in fetch.targets:
                fetch.targets.append((who, block))
            fetches.append((block, fetch))
        if new:
            try:
                self._begin(packs, new)
            except Exception as error:
                self._fail(new, error)  # else those who want these blocks would wait for good
                raise
        elif demand:
            self._changed.unpark_all()  # a request that had to wait for readers may be one of theirs now
        return fetches

    def _begin(self, packs: Sequence[Pack], fetches: list[BlockFetch[_T]]) -> None:
        if self.nursery is None:
            self._fail(fetches, Abandoned("the block store is not running"))
            return
        copies = [(fetch, copy) for fetch in fetches if (copy := self._find(fetch.place.digest))]
        if copies:
            self.nursery.start_soon(self._copy, packs, copies)
            found = {fetch.place.digest for fetch, _ in copies}
            fetches = [fetch for fetch in fetches if fetch.place.digest not in found]
        self._start_requests(self.nursery, packs, fetches)

    def _start_requests(self, nursery: trio.Nursery, packs: Sequence[Pack], fetches: Iterable[BlockFetch[_T]]) -> None:
        for demand in (True, False):
            for group in _contiguous((one for one in fetches if one.demand == demand), RANGE if demand else 0):
                scope = trio.CancelScope(deadline=max(fetch.deadline for fetch in group))
                upstreams = group[0].upstreams
                request = _RangeRequest(upstreams, upstreams.best, packs[group[0].place.pack], group, demand, scope)
                for fetch in group:
                    fetch.request = request
                request.upstream.demand += demand
                nursery.start_soon(self._run_request, request)
                for mirror in upstreams.to_probe():
                    nursery.start_soon(contain, f"probing {mirror.label}", mirror.probe, request.pack, group[0].place)

    # -- from this machine ---------------------------------------------------------------------------------------

    async def _copy(self, packs: Sequence[Pack], copies: Sequence[tuple[BlockFetch[_T], Copy]]) -> None:
        left = [fetch for fetch, _ in copies]
        try:
            await contain("reading blocks of other images", self._take, copies, left)
            if self.nursery is not None:
                self._start_requests(self.nursery, packs, left)
                left = []
        finally:
            self._fail(left, Abandoned("the block store is being shut down"))

    async def _take(self, copies: Sequence[tuple[BlockFetch[_T], Copy]], left: list[BlockFetch[_T]]) -> None:
        """Finish the fetches whose copies are right, and remove them from `left`."""
        wanted = [(fetch.place.digest, copy) for fetch, copy in copies]
        # Not abandoned: it reads descriptors that their owners close after this.
        found = await self._copying.run("reading blocks of other images", read_copies, wanted, abandon=False)
        for (fetch, _), arrived in zip(copies, found, strict=True):
            if arrived is not None:
                left.remove(fetch)
                fetch.copied = True
                self._stats.hits_peer += 1
                self._finish(fetch, arrived, ahead=not fetch.demand)

    # -- from the store ------------------------------------------------------------------------------------------

    async def _run_request(self, request: _RangeRequest[_T]) -> None:
        failed: list[BaseException] = []
        try:
            with request.scope:
                await contain("fetching blocks", self._fetch_pending, request, failed=failed.append)
            if failed:
                self._fail(request.pending, StoreError(f"fetching failed unexpectedly: {failed[0]!r}"))
            if request.scope.cancelled_caught:
                self._fail(request.pending, ServiceDown(f"no answer within {self._io_timeout:g} s"))
        finally:
            request.upstream.demand -= request.demand
            self._fail(request.pending, Abandoned("the block store is being shut down"))
            self._changed.unpark_all()

    async def _fetch_pending(self, request: _RangeRequest[_T]) -> None:
        backoff = Backoff()
        while request.pending:
            run = next(_contiguous(request.pending, 0))
            for fetch in run:
                fetch.last_upstream = request.upstream
            try:
                arrived = await self._read_in_time(request, run)
            except StripefsError as error:
                host = error.host if isinstance(error, HostFailed) else ""
                for fetch in run:
                    fetch.trouble = fetch.trouble or ("datanode" if host else "store", host or request.upstream.host)
                passing = isinstance(error, Transient) or isinstance(request.upstream, MirrorUpstream)
                if passing:
                    request.upstream.failed(error.message)
                    if self._switch(request):
                        self._warn("switched", "%s; fetching from another place", error)
                        self._stats.retries += 1
                        continue
                pause = backoff.failed(trio.current_time())
                if not passing:
                    self._count_try(request, run, error)
                    self._switch(request)
                elif trio.current_time() + pause >= request.scope.deadline:
                    self._fail(request.pending, error)
                    return
                _log.info("pack %s, next try in %.1f s: %s", request.pack.digest.hex()[:12], pause, error)
            else:
                request.upstream.worked()
                self._accept(request, run, arrived)
                continue
            self._stats.retries += 1
            await trio.sleep(pause)
            while request.upstream.demand and not request.wanted:
                await self._changed.park()

    async def _read_in_time(self, request: _RangeRequest[_T], run: Sequence[BlockFetch[_T]]) -> list[Arrived | None]:
        """As `_read`; where another store could be asked, no answer for a while is an error."""
        patience = SWITCH_AFTER if request.upstreams.other(request.upstream) is not None else float("inf")
        with trio.move_on_after(patience):
            return await self._read(request, run)
        raise ServiceDown(f"pack {request.pack.digest.hex()[:12]}: no answer within {patience:g} s")

    def _switch(self, request: _RangeRequest[_T]) -> bool:
        """Go on with another store; False where no other is healthy."""
        other = request.upstreams.other(request.upstream)
        if other is None:
            return False
        request.upstream.demand -= request.demand
        request.upstream = other
        request.upstream.demand += request.demand
        return True

    def _accept(
        self, request: _RangeRequest[_T], run: Sequence[BlockFetch[_T]], arrived: Sequence[Arrived | None]
    ) -> None:
        fetched = self._stats.demand if request.demand else self._stats.ahead
        fetched.ranges += 1
        bad = []
        for fetch, one in zip(run, arrived, strict=True):
            if one is None:
                bad.append(fetch)
                continue
            fetched.blocks += 1
            fetched.bytes += len(one[0])
            fetched.stored += fetch.place.stored
            self._stats.upstreams[request.upstream.label] += fetch.place.stored
            request.pending.remove(fetch)
            self._finish(fetch, one, ahead=not (request.demand or fetch.demand))
        if bad:
            self._stats.damaged_arrival += len(bad)
            self._stats.retries += 1
            where = f"pack {request.pack.digest.hex()} at {bad[0].place.offset}"
            self._warn("damaged", "%s: %d blocks did not arrive as they must be; fetching them again", where, len(bad))
            error = DamagedObject(f"{where} holds other bytes than the image says")
            if isinstance(request.upstream, MirrorUpstream):
                request.upstream.failed(error.message)
            else:
                self._count_try(request, bad, error)
            self._switch(request)

    def _count_try(self, request: _RangeRequest[_T], run: Iterable[BlockFetch[_T]], error: StripefsError) -> None:
        for fetch in list(run):
            fetch.tries += 1
            if fetch.tries >= TRIES:
                request.pending.remove(fetch)
                self._fail([fetch], error)

    async def _read(self, request: _RangeRequest[_T], run: Sequence[BlockFetch[_T]]) -> list[Arrived | None]:
        offset = run[0].place.offset
        size = run[-1].place.offset + run[-1].place.stored - offset
        room = size + sum(fetch.place.length for fetch in run)
        link = request.upstream.link
        transfer = link.begin(size, trio.current_time())
        self._memory.reserve(room)
        token = trio.lowlevel.current_trio_token()

        def received() -> None:
            """The way is free for the next range, while the blocks of this one are unpacked and checked."""
            link.end(transfer, trio.current_time(), arrived=True)
            self._changed.unpark_all()

        try:
            lane = request.upstream.readers if request.demand else request.upstream.ahead
            return await lane.run(
                f"reading {size} bytes of pack {request.pack.digest.hex()[:12]}",
                load, request.upstream.source, request.pack, offset, size, [fetch.place for fetch in run],
                lambda: token.run_sync_soon(received),
            )  # fmt: skip
        finally:
            self._memory.reserve(-room)
            link.end(transfer, trio.current_time(), arrived=False)  # unless it was received
            self._changed.unpark_all()

    # -- the end -------------------------------------------------------------------------------------------------

    def _finish(self, fetch: BlockFetch[_T], arrived: Arrived, *, ahead: bool) -> None:
        fetch.data = arrived[0]
        del self._under_way[fetch.home, fetch.place.digest]
        fetch.finished.set()  # first: who waits runs after all this, and must not wait for good if keeping fails
        for who, block in fetch.targets:
            self._keep(who, block, fetch.place.digest, arrived, ahead)
        self._memory.add(fetch.place.digest, arrived[0])

    def _fail(self, fetches: Iterable[BlockFetch[_T]], error: Exception) -> None:
        for fetch in fetches:
            if not fetch.finished.is_set():
                self._stats.failures += 1
                fetch.error = error
                del self._under_way[fetch.home, fetch.place.digest]
                fetch.finished.set()


def _contiguous(fetches: Iterable[BlockFetch[_T]], most: int) -> Iterator[list[BlockFetch[_T]]]:
    """Cut into groups that one range of a pack covers, of at most `most` stored bytes, 0 for any."""
    group: list[BlockFetch[_T]] = []
    stored = 0
    for fetch in sorted(fetches, key=lambda fetch: (fetch.place.pack, fetch.place.offset)):
        place = fetch.place
        if group:
            last = group[-1].place
            follows = (place.pack, place.offset) == (last.pack, last.offset + last.stored)
            if not follows or (most and stored + place.stored > most):
                yield group
                group, stored = [], 0
        group.append(fetch)
        stored += place.stored
    if group:
        yield group
