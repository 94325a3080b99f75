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

from imagefs.blocks.prefetch_policy import Run
from imagefs.blocks.source import Arrived, Copy, load, read_copies
from imagefs.blocks.stats import BlockStats
from imagefs.blocks.upstream import SWITCH_AFTER, MirrorUpstream, Upstream, Upstreams
from imagefs.blocks.writeback import BlockMemory
from imagefs.errors import DamagedObject
from imagefs.format.index import BlockLocation, Pack
from stripefs.errors import Abandoned, HostFailed, ServiceDown, StoreError, StripefsError, Transient
from stripefs.executor import Lane
from stripefs.retry import Backoff, Seldom
from stripefs.supervised import contain

__all__ = ["BlockFetch", "Fetcher"]

_log = logging.getLogger(__name__)
TRIES = 3
COPIES = 4
"""Threads that look on this machine."""

RANGE = 1 << 20
"""Stored bytes that one ride for readers carries: the largest read of the kernel. Those ahead are as long as asked."""

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
    landed: trio.Event = field(default_factory=trio.Event)
    data: bytes | None = None
    error: Exception | None = None
    copied: bool = False
    tries: int = 0
    ride: _RangeRequest[_T] | None = None
    asked: Upstream | None = None
    """The upstream that its bytes were last asked of."""
    trouble: tuple[str, str] | None = None
    """The first failure on its way, as the cause of a stall and its host."""

    def join(self, *, demand: bool, deadline: float) -> None:
        """Somebody else waits for it too, until `deadline`."""
        self.demand |= demand
        self.deadline = max(self.deadline, deadline)
        if self.ride is not None:
            self.ride.scope.deadline = max(self.ride.scope.deadline, deadline)


@dataclass(eq=False, slots=True)
class _RangeRequest(Generic[_T]):
    """A range under way. `pending`: those of its flights that are not settled, in the order of the pack."""

    upstreams: Upstreams
    upstream: Upstream
    """The store that is asked now."""
    pack: Pack
    pending: list[BlockFetch[_T]]
    demand: bool
    scope: trio.CancelScope

    @property
    def wanted(self) -> bool:
        """Tells whether a reader waits for any of it, be it that the ride began ahead."""
        return self.demand or any(flight.demand for flight in self.pending)


class Fetcher(Generic[_T]):
    """All blocks under way of a block store.

    find: how a block can be had without a store, None when it cannot. keep: called for each target with the block
    that has arrived, before those who wait are woken. changed: woken when a range ends. nursery: where rides run; None
    while nothing can be fetched.
    """

    def __init__(
        self,
        memory: BlockMemory,
        figures: BlockStats,
        io_timeout: float,
        find: Callable[[bytes], Copy | None],
        keep: Callable[[_T, int, bytes, Arrived, bool], None],
        changed: trio.lowlevel.ParkingLot,
    ) -> None:
        self.nursery: trio.Nursery | None = None
        self._changed = changed
        self._memory = memory
        self._figures = figures
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

    def want(
        self, who: _T, upstreams: Upstreams, packs: Sequence[Pack], blocks: Run, *, demand: bool
    ) -> list[tuple[int, BlockFetch[_T]]]:
        """The flights of these blocks, those that were not under way begun. `packs`: what their places mean.

        demand: a reader waits. Returns at once; a flight has `data` or `error` when it has `landed`.
        """
        deadline = trio.current_time() + self._io_timeout
        flights, new, home = [], [], next(iter(upstreams))
        for block, place in blocks:
            flight = self._under_way.get((home, place.digest))
            if flight is None:
                flight = self._under_way[home, place.digest] = BlockFetch(home, upstreams, place, demand, deadline)
                new.append(flight)
            else:
                flight.join(demand=demand, deadline=deadline)
            if (who, block) not in flight.targets:
                flight.targets.append((who, block))
            flights.append((block, flight))
        if new:
            self._begin(packs, new)
        elif demand:
            self._changed.unpark_all()  # a ride that had to wait for readers may be one of theirs now
        return flights

    def _begin(self, packs: Sequence[Pack], flights: list[BlockFetch[_T]]) -> None:
        if self.nursery is None:
            self._fail(flights, Abandoned("the block store is not running"))
            return
        copies = [(flight, copy) for flight in flights if (copy := self._find(flight.place.digest))]
        if copies:
            self.nursery.start_soon(self._copy, packs, copies)
            found = {flight.place.digest for flight, _ in copies}
            flights = [flight for flight in flights if flight.place.digest not in found]
        self._board(self.nursery, packs, flights)

    def _board(self, nursery: trio.Nursery, packs: Sequence[Pack], flights: Iterable[BlockFetch[_T]]) -> None:
        for demand in (True, False):
            for group in _contiguous((one for one in flights if one.demand == demand), RANGE if demand else 0):
                scope = trio.CancelScope(deadline=max(flight.deadline for flight in group))
                upstreams = group[0].upstreams
                ride = _RangeRequest(upstreams, upstreams.best, packs[group[0].place.pack], group, demand, scope)
                for flight in group:
                    flight.ride = ride
                ride.upstream.demand += demand
                nursery.start_soon(self._fly, ride)
                for mirror in upstreams.to_probe():
                    nursery.start_soon(contain, f"probing {mirror.label}", mirror.probe, ride.pack, group[0].place)

    # -- from this machine ---------------------------------------------------------------------------------------

    async def _copy(self, packs: Sequence[Pack], copies: Sequence[tuple[BlockFetch[_T], Copy]]) -> None:
        left = [flight for flight, _ in copies]
        try:
            await contain("reading blocks of other images", self._take, copies, left)
            if self.nursery is not None:
                self._board(self.nursery, packs, left)
                left = []
        finally:
            self._fail(left, Abandoned("the block store is being shut down"))

    async def _take(self, copies: Sequence[tuple[BlockFetch[_T], Copy]], left: list[BlockFetch[_T]]) -> None:
        """Land the flights whose copies are right, and remove them from `left`."""
        wanted = [(flight.place.digest, copy) for flight, copy in copies]
        # Not abandoned: it reads descriptors that their owners close after this.
        found = await self._copying.run("reading blocks of other images", read_copies, wanted, abandon=False)
        for (flight, _), arrived in zip(copies, found, strict=True):
            if arrived is not None:
                left.remove(flight)
                flight.copied = True
                self._figures.hits_peer += 1
                self._land(flight, arrived, ahead=not flight.demand)

    # -- from the store ------------------------------------------------------------------------------------------

    async def _fly(self, ride: _RangeRequest[_T]) -> None:
        failed: list[BaseException] = []
        try:
            with ride.scope:
                await contain("fetching blocks", self._carry, ride, failed=failed.append)
            if failed:
                self._fail(ride.pending, StoreError(f"fetching failed unexpectedly: {failed[0]!r}"))
            if ride.scope.cancelled_caught:
                self._fail(ride.pending, ServiceDown(f"no answer within {self._io_timeout:g} s"))
        finally:
            ride.upstream.demand -= ride.demand
            self._fail(ride.pending, Abandoned("the block store is being shut down"))
            self._changed.unpark_all()

    async def _carry(self, ride: _RangeRequest[_T]) -> None:
        backoff = Backoff()
        while ride.pending:
            run = next(_contiguous(ride.pending, 0))
            for flight in run:
                flight.asked = ride.upstream
            try:
                arrived = await self._read_in_time(ride, run)
            except StripefsError as error:
                host = error.host if isinstance(error, HostFailed) else ""
                for flight in run:
                    flight.trouble = flight.trouble or ("datanode" if host else "store", host or ride.upstream.host)
                passing = isinstance(error, Transient) or isinstance(ride.upstream, MirrorUpstream)
                if passing:
                    ride.upstream.failed(error.message)
                    if self._switch(ride):
                        self._warn("switched", "%s; fetching from another place", error)
                        self._figures.retries += 1
                        continue
                pause = backoff.failed(trio.current_time())
                if not passing:
                    self._tried(ride, run, error)
                    self._switch(ride)
                elif trio.current_time() + pause >= ride.scope.deadline:
                    self._fail(ride.pending, error)
                    return
                _log.info("pack %s, next try in %.1f s: %s", ride.pack.digest.hex()[:12], pause, error)
            else:
                ride.upstream.worked()
                self._settle(ride, run, arrived)
                continue
            self._figures.retries += 1
            await trio.sleep(pause)
            while ride.upstream.demand and not ride.wanted:
                await self._changed.park()

    async def _read_in_time(self, ride: _RangeRequest[_T], run: Sequence[BlockFetch[_T]]) -> list[Arrived | None]:
        """As `_read`; where another store could be asked, no answer for a while is an error."""
        patience = SWITCH_AFTER if ride.upstreams.other(ride.upstream) is not None else float("inf")
        with trio.move_on_after(patience):
            return await self._read(ride, run)
        raise ServiceDown(f"pack {ride.pack.digest.hex()[:12]}: no answer within {patience:g} s")

    def _switch(self, ride: _RangeRequest[_T]) -> bool:
        """Go on with another store; False where no other is healthy."""
        other = ride.upstreams.other(ride.upstream)
        if other is None:
            return False
        ride.upstream.demand -= ride.demand
        ride.upstream = other
        ride.upstream.demand += ride.demand
        return True

    def _settle(
        self, ride: _RangeRequest[_T], run: Sequence[BlockFetch[_T]], arrived: Sequence[Arrived | None]
    ) -> None:
        fetched = self._figures.demand if ride.demand else self._figures.ahead
        fetched.ranges += 1
        bad = []
        for flight, one in zip(run, arrived, strict=True):
            if one is None:
                bad.append(flight)
                continue
            fetched.blocks += 1
            fetched.bytes += len(one[0])
            fetched.stored += flight.place.stored
            self._figures.upstreams[ride.upstream.label] += flight.place.stored
            ride.pending.remove(flight)
            self._land(flight, one, ahead=not (ride.demand or flight.demand))
        if bad:
            self._figures.damaged_arrival += len(bad)
            self._figures.retries += 1
            where = f"pack {ride.pack.digest.hex()} at {bad[0].place.offset}"
            self._warn("damaged", "%s: %d blocks did not arrive as they must be; fetching them again", where, len(bad))
            error = DamagedObject(f"{where} holds other bytes than the image says")
            if isinstance(ride.upstream, MirrorUpstream):
                ride.upstream.failed(error.message)
            else:
                self._tried(ride, bad, error)
            self._switch(ride)

    def _tried(self, ride: _RangeRequest[_T], run: Iterable[BlockFetch[_T]], error: StripefsError) -> None:
        for flight in list(run):
            flight.tries += 1
            if flight.tries >= TRIES:
                ride.pending.remove(flight)
                self._fail([flight], error)

    async def _read(self, ride: _RangeRequest[_T], run: Sequence[BlockFetch[_T]]) -> list[Arrived | None]:
        offset = run[0].place.offset
        size = run[-1].place.offset + run[-1].place.stored - offset
        room = size + sum(flight.place.length for flight in run)
        link = ride.upstream.link
        transfer = link.begin(size, trio.current_time())
        self._memory.fly(room)
        token = trio.lowlevel.current_trio_token()

        def received() -> None:
            """The way is free for the next range, while the blocks of this one are unpacked and checked."""
            link.end(transfer, trio.current_time(), arrived=True)
            self._changed.unpark_all()

        try:
            lane = ride.upstream.readers if ride.demand else ride.upstream.ahead
            return await lane.run(
                f"reading {size} bytes of pack {ride.pack.digest.hex()[:12]}",
                load, ride.upstream.source, ride.pack, offset, size, [flight.place for flight in run],
                lambda: token.run_sync_soon(received),
            )  # fmt: skip
        finally:
            self._memory.fly(-room)
            link.end(transfer, trio.current_time(), arrived=False)  # unless it was received
            self._changed.unpark_all()

    # -- the end -------------------------------------------------------------------------------------------------

    def _land(self, flight: BlockFetch[_T], arrived: Arrived, *, ahead: bool) -> None:
        flight.data = arrived[0]
        del self._under_way[flight.home, flight.place.digest]
        flight.landed.set()  # first: who waits runs after all this, and must not wait for good if keeping fails
        for who, block in flight.targets:
            self._keep(who, block, flight.place.digest, arrived, ahead)
        self._memory.add(flight.place.digest, arrived[0])

    def _fail(self, flights: Iterable[BlockFetch[_T]], error: Exception) -> None:
        for flight in flights:
            if not flight.landed.is_set():
                self._figures.failures += 1
                flight.error = error
                del self._under_way[flight.home, flight.place.digest]
                flight.landed.set()


def _contiguous(flights: Iterable[BlockFetch[_T]], most: int) -> Iterator[list[BlockFetch[_T]]]:
    """Cut into groups that one range of a pack covers, of at most `most` stored bytes, 0 for any."""
    group: list[BlockFetch[_T]] = []
    stored = 0
    for flight in sorted(flights, key=lambda flight: (flight.place.pack, flight.place.offset)):
        place = flight.place
        if group:
            last = group[-1].place
            follows = (place.pack, place.offset) == (last.pack, last.offset + last.stored)
            if not follows or (most and stored + place.stored > most):
                yield group
                group, stored = [], 0
        group.append(flight)
        stored += place.stored
    if group:
        yield group
