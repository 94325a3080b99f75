"""The planner: turns reads into attempts, and their outcomes into the next ones. Pure; see the package's essay."""

from __future__ import annotations

from collections.abc import Sequence

from stripefs.errors import Corrupt, HostFailed, NotFound, StaleVersion, StoreError, Transient
from stripefs.format.blocks import CHUNK, Block
from stripefs.read.planner.budget_share import BudgetShare, nearest
from stripefs.read.planner.hosts import ANY_HOST, STALL, HostTable, Limits
from stripefs.read.planner.range_buffer import (
    KEPT,
    LATELY,
    Attempt,
    FilePlan,
    Range,
    RangeBuffer,
    RangeState,
    trusted_ahead,
)
from stripefs.read.planner.readahead import ACTIVE, Cursor
from stripefs.retry import HostHealth

__all__ = ["Planner"]

CURSOR_IDLE = 30.0
"""Seconds after which a cursor that nobody moved is forgotten and its look-ahead given up."""

CONSUMED_IDLE = 5.0
"""Seconds that consumed ranges stay without being touched: long enough for a second process a little behind."""

BEHIND = 16 << 20
"""Bytes behind each stream that stay of them at least: the kernel's requests overtake one another by some MiB."""

READ_BEFORE_NEXT = 16 << 20
"""Bytes of a file, or its half, that are read before the file is foretold that comes next. A window of 1 GiB is open by
then: with parts of 256 MiB on 8 hosts the look-ahead is through the first part, and some hosts stand idle."""

FILES_AHEAD = 8
"""Files that are looked ahead into beyond the one that is read. A few parts of a large checkpoint fill the window; of
small ones no more are opened, each of which costs the metadata service a call."""

SLOWEST_FADES = 0.95
"""Factor by which the time of the slowest range counts less with each further one: ten ranges later by 40%."""

RETRY_FIRST = 0.05
RETRY_LONGEST = 2.0
"""Seconds before a range is asked for again when every replica has failed, doubling from the first to the longest."""


class Planner:
    """Call `read` for every read, then `dispatch`; report each attempt's end; call `tick` about once a second."""

    def __init__(self, limits: Limits, health: HostHealth | None = None) -> None:
        self.limits = limits
        self.pool = RangeBuffer(limits.budget)
        self.hosts = HostTable(per_host=limits.per_host, total=limits.threads, local=limits.local_hosts, health=health)
        self.files: dict[FilePlan, None] = {}
        self.attempts: dict[Attempt, None] = {}
        self.unlocated: dict[FilePlan, int] = {}
        """Positions at which look-ahead met a block that is not known; the caller takes the entry and locates from
        there."""
        self.outdated: dict[FilePlan, int] = {}
        """Positions at which no replica served a block; the caller takes the entry and asks anew where the block
        lies."""
        self.hedges = self.hedge_wins = self.retries = self.starved = 0
        self.bytes_fetched = self.bytes_wasted = 0
        # A quarter of the threads is for readers that wait, and for second attempts.
        self.look_ahead_threads = max(1, limits.threads * 3 // 4)
        self._wanted: dict[Range, None] = {}
        self._shares = BudgetShare(
            limits.budget, limits.range_size, threads=self.look_ahead_threads, per_host=self.hosts.per_host
        )
        self._looked = 0.0
        self._returned = float("-inf")
        """Time at which a reader last came to the look-ahead of another one, or to what was dropped behind that."""
        self._readahead_done = False
        """Nothing that matters has changed since look-ahead found nothing to start."""

    # -- files ---------------------------------------------------------------------------------------------------

    def open(self, length: int) -> FilePlan:
        file = FilePlan(length)
        self.files[file] = None
        return file

    def close(self, file: FilePlan) -> None:
        """Forget the file: its attempts are cancelled, its memory comes back as they end."""
        file.closed = True
        self._readahead_done = False
        self.files.pop(file, None)
        self.unlocated.pop(file, None)
        self.outdated.pop(file, None)
        for range_ in set(file.ranges.values()):
            self._abandon(range_)
        file.ranges.clear()

    def located(self, file: FilePlan, blocks: Sequence[Block]) -> None:
        """Blocks of the file have become known, or lie elsewhere now."""
        file.blocks.add(blocks)
        self._readahead_done = False

    @property
    def waiting(self) -> bool:
        """True if a range waits for a host, for memory or for its next try."""
        return bool(self._wanted)

    # -- reads ---------------------------------------------------------------------------------------------------

    def read(self, file: FilePlan, offset: int, size: int, now: float) -> None:
        """A reader asks for [offset, offset + size), inside the file, its blocks known."""
        cursor, forgotten = file.cursors.match(offset, now)
        if forgotten is not None:
            self._release_cursor(forgotten)
        starved, streaming = False, cursor.streaming and cursor.after is None
        low, high = cursor.start, cursor.position
        position, end = file.blocks.chunk_start(offset), offset + size
        if not cursor.consumed:
            self._follow(file, position, cursor, now)
        while position < end:
            range_ = self._demand(file, position, cursor, end, now)
            if range_.state is not RangeState.READY:
                starved = True
                cursor.rereads = file.read_since(position, now - LATELY)
                range_.deadline = now + self.limits.io_timeout  # of the reader that came last
            position = range_.end
        for chunk in file.chunks(offset, end):
            file.read_at[chunk] = now
        self.starved += starved
        cursor.advance(offset, size, starved=starved, limit=self._shares.share, now=now)
        if cursor.streaming and not streaming:
            self._count(now)
        passed = (cursor.start, max(low, end)) if cursor.backward else (min(high, offset), cursor.position)
        if self._pass(file, *passed, cursor, now) or starved or not streaming:
            self._readahead_done = False

    def nearing_end(self, file: FilePlan) -> Cursor | None:
        """The foremost cursor where its look-ahead has come to the file's end, and enough was read to trust that its
        reader goes on to there, or that reader is on its way here; else None."""
        front = max(file.cursors, key=lambda cursor: cursor.position, default=None)
        if front is None or front.backward or not front.streaming:
            return None
        if front.files_ahead >= FILES_AHEAD:
            return None
        if front.after is None and file.cursors.trust.read < min(file.length // 2, READ_BEFORE_NEXT):
            return None
        return front if front.position + front.reach(file.ahead_limit(self._shares.share)) >= file.length else None

    def announce(self, file: FilePlan, before: FilePlan, cursor: Cursor, now: float) -> None:
        """Look ahead in `file` as far as the window of `cursor` goes beyond its own file, `before`."""
        file.cursors.announce(cursor, before.length, now)
        file.slowest = before.slowest  # they lie in the same store
        self._readahead_done = False

    def _follow(self, file: FilePlan, position: int, cursor: Cursor, now: float) -> None:
        """A new cursor that begins in the look-ahead of another takes over what lies ahead of both.

        Bytes that the other one has passed may be for this one: of two processes that share out the tensors of a file
        each jumps over those of the other.
        """
        first = file.ranges.get(position)
        other = first.cursor if first is not None else None
        if other is None or other is cursor:
            return
        self._keep_passed(now)
        cursor.follow(other)
        for range_ in set(file.ranges.values()):
            if range_.cursor is other and range_.offset >= position:
                range_.cursor = cursor

    def _keep_passed(self, now: float) -> None:
        """Keep what readers have passed as far as the budget goes, for a while."""
        self._returned, self.pool.kept = now, self.limits.budget

    def need(self, file: FilePlan, offset: int, now: float) -> Range:
        """The range that holds the byte at `offset`, demanded. Ask again when it ends up DROPPED or cut short."""
        return self._demand(file, file.blocks.chunk_start(offset), None, offset + 1, now)

    def _demand(self, file: FilePlan, start: int, cursor: Cursor | None, end: int, now: float) -> Range:
        range_ = file.ranges.get(start)
        if range_ is None:
            if file.failed is not None:
                raise file.failed
            streaming = cursor if cursor is not None and cursor.streaming else None
            # A backward reader has had the bytes above it already.
            whole = streaming is not None and not streaming.backward
            span = file.absent_run(start, None if whole else end, self.range_size())
            if start in file.passed:
                self._keep_passed(now)
            range_ = file.plan(span, self._choice(span.hosts), streaming)
        range_.used = now
        range_.wanted = True
        self.pool.touch(range_)
        if not range_.demanded and range_.state is not RangeState.READY:
            range_.demanded = True
            range_.deadline = now + self.limits.io_timeout
            if range_.state is RangeState.WANTED:
                self._wanted[range_] = None
        return range_

    def _pass(self, file: FilePlan, start: int, end: int, cursor: Cursor, now: float) -> bool:
        """Mark the ranges of [start, end) that lie wholly behind the cursor as consumed; True if there was one."""
        left = False
        for range_ in file.between(start, end):
            if cursor.left(range_):
                left = True
                # One that another stream looked ahead for stays for it, as long as that is on its way.
                owner = range_.cursor
                if owner is cursor or (owner and not owner.active(now - ACTIVE)):
                    self.pool.consumed(range_)
        return left

    # -- dispatch ------------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> list[Attempt]:
        """The attempts to start now: ranges that readers wait for, then look-ahead."""
        started: list[Attempt] = []
        if not self._wanted and self._readahead_done:
            return started
        for range_ in [range_ for range_ in self._wanted if range_.not_before <= now]:
            if self.hosts.in_flight >= self.hosts.total:
                return started
            if range_.failures:
                range_.hosts = self._choice(range_.file.hosts(range_.offset))
            host = self.hosts.choose(range_.hosts, now, demanded=True, tried=range_.tried)
            if host is None or not self._make_room_for(range_, now):
                continue
            del self._wanted[range_]
            started.append(self._start(range_, host, now))
        started += self._look_ahead(now)
        return started

    def _make_room_for(self, range_: Range, now: float) -> bool:
        if self._make_room(range_.length, now, demanded=True):
            return True
        # Better a chunk now than a whole range later: give the tail back, whoever waits for it asks again.
        range_.file.shorten(range_, min(range_.offset + CHUNK, range_.end))
        return self._make_room(range_.length, now, demanded=True)

    def _choice(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """The hosts that we choose from; none when the client library chooses, also in the place of far ones."""
        local = self.limits.local_hosts.intersection(hosts)
        if local and (not self.limits.choose_host or len(hosts) == len(local)):
            return (*local, ANY_HOST)
        return hosts if self.limits.choose_host or len(hosts) == 1 else ()

    def _look_ahead(self, now: float) -> list[Attempt]:
        started: list[Attempt] = []
        if self._readahead_done or self.hosts.in_flight >= self.look_ahead_threads:
            return started
        share = self._shares.share
        self.hosts.ahead = self._shares.per_host
        range_size = self.range_size()
        busy: set[tuple[str, ...]] = set()

        def local(hosts: tuple[str, ...]) -> bool:
            return self.hosts.local_of(hosts, now) is not None

        for file, cursor, span in nearest(self.files, share, range_size, now, self.unlocated, local):
            if self.hosts.in_flight >= self.look_ahead_threads:
                break
            if span.hosts in busy:
                continue
            hosts = self._choice(span.hosts)
            host = self.hosts.choose(hosts, now, demanded=False)
            if host is None:
                busy.add(span.hosts)
            elif span.offset not in file.ranges:  # or another cursor of this round took it
                rest = file.absent_run(span.offset, span.end, range_size)  # making room may have taken its tail
                if not self._make_room(rest.length, now, demanded=False):
                    break
                started.append(self._start(file.plan(rest, hosts, cursor), host, now))
        self._readahead_done = not started
        return started

    def _start(self, range_: Range, host: str, now: float, *, hedge: bool = False) -> Attempt:
        attempt = Attempt(range_, host, now, hedge, 0 if hedge else trusted_ahead(range_))
        range_.state = RangeState.FETCHING
        range_.attempts.append(attempt)
        self.attempts[attempt] = None
        self.pool.reserve(range_.length)
        self.hosts.started(host)
        return attempt

    def overdue(self, now: float) -> list[Attempt]:
        """Second attempts for ranges whose first is silent or slow, to start now."""
        hedges: list[Attempt] = []
        overslept, self._looked = now - self._looked > STALL, now
        if overslept:  # so this process itself stood still; the next look shows the bytes that its sockets hold
            return hedges
        for attempt in list(self.attempts):
            range_ = attempt.range
            if attempt.late or attempt.cancelled or attempt.received_at:
                continue
            if range_.state is not RangeState.FETCHING or len(range_.attempts) > 1:
                continue
            silent = attempt.progress_at > 0 and now - attempt.progress_at > STALL
            if silent:
                self.hosts.suspect(attempt.host, now, f"sent nothing for {now - attempt.progress_at:.1f} s")
            elif now - attempt.started <= self.hosts.slow_after(attempt.host, range_.length):
                continue
            others = [host for host in self.hosts.health.well(range_.hosts, now) if host != attempt.host]
            if not self.limits.hedge or (range_.hosts and not others):
                continue
            host = self.hosts.choose(others, now, demanded=True)
            if host is None or not self._make_room(range_.length, now, demanded=True):
                continue
            self.hedges += 1
            hedges.append(self._start(range_, host, now, hedge=True))
        return hedges

    # -- how attempts end ----------------------------------------------------------------------------------------

    def received(self, attempt: Attempt, now: float) -> None:
        """The attempt's bytes are here, but have yet to be confirmed: its host is free for others."""
        attempt.received_at = now
        self.hosts.ended(attempt.host)
        self._readahead_done = False

    def succeeded(self, attempt: Attempt, data: object, now: float) -> Range | None:
        """The attempt's bytes are here. Answers the range when waiters can go on, None when they came too late."""
        range_ = self._ended(attempt, now)
        self.bytes_fetched += range_.length
        if attempt.late or attempt.cancelled:
            self.pool.release(range_.length)
            self.bytes_wasted += range_.length
            return None
        host = attempt.served_by or attempt.host
        # The time of an answer from a host that was not asked says nothing of either host.
        taken = _taken(attempt, now)
        self.hosts.succeeded(host, range_.length, None if attempt.served_by else taken)
        whole = taken * max(1.0, self.range_size() / range_.length)
        range_.file.slowest = max(whole, range_.file.slowest * SLOWEST_FADES)
        range_.abandon()
        for other in range_.attempts if attempt.hedge else ():
            self.hosts.suspect(other.host, now, "was overtaken by another replica")
        self.hedge_wins += attempt.hedge
        range_.state, range_.data, range_.demanded, range_.used = RangeState.READY, data, False, now
        range_.host, range_.local = host, host in self.limits.local_hosts
        if range_.cursor is not None and (range_.cursor.forgotten or range_.cursor.left(range_)):
            range_.cursor = None
        self.pool.arrived(range_)
        return range_

    def failed(self, attempt: Attempt, error: Exception, now: float) -> list[Range]:
        """The attempt failed. Answers the ranges that are FAILED for good, whose waiters take `error`."""
        range_ = self._ended(attempt, now)
        self.pool.release(range_.length)
        if attempt.late or attempt.cancelled:
            return []
        if isinstance(error, HostFailed):
            self.hosts.failed(attempt.host, now, error.message)
        if isinstance(error, (StaleVersion, NotFound)):
            return self._fail_file(range_.file, error)
        if isinstance(error, Corrupt):  # final, also while another host is still silent
            range_.abandon()
        elif range_.attempts:
            return []
        if not isinstance(error, Transient):
            return [self._fail(range_, error)]
        return self._retry(range_, attempt.host, error, now)

    def _retry(self, range_: Range, host: str, error: Transient, now: float) -> list[Range]:
        range_.failures += 1
        range_.tried.append(host)
        delay = 0.0
        if not set(range_.hosts) - set(range_.tried):
            range_.tried.clear()
            self.outdated[range_.file] = range_.offset
            delay = min(RETRY_FIRST * 2 ** min(range_.failures, 10), RETRY_LONGEST)
        if range_.deadline == float("inf"):
            range_.deadline = now + self.limits.io_timeout
        if now + delay > range_.deadline:
            return [self._fail(range_, error)]
        self.retries += 1
        range_.state = RangeState.WANTED
        range_.not_before = now + delay
        self._wanted[range_] = None
        return []

    def _ended(self, attempt: Attempt, now: float) -> Range:
        self._readahead_done = False
        del self.attempts[attempt]
        if not attempt.received_at:
            self.hosts.ended(attempt.host)
        attempt.range.attempts.remove(attempt)
        if not attempt.late:
            range_ = attempt.range
            times = ((_taken(one, now), one.host) for one in (attempt, *range_.attempts))
            range_.slowest = max([range_.slowest, *times])
        return attempt.range

    def _fail(self, range_: Range, error: Exception) -> Range:
        self._wanted.pop(range_, None)
        range_.file.remove(range_)
        range_.state, range_.error = RangeState.FAILED, error
        return range_

    def _fail_file(self, file: FilePlan, error: StoreError) -> list[Range]:
        """The version is gone: nothing more of it is fetched, and waiting reads fail. Ready ranges stay readable."""
        file.failed = error
        failed = []
        for range_ in set(file.ranges.values()):
            if range_.state is not RangeState.READY:
                range_.abandon()
                failed.append(self._fail(range_, error))
        return failed

    def _abandon(self, range_: Range) -> None:
        range_.abandon()
        self._wanted.pop(range_, None)
        if range_.state is RangeState.READY:
            self.pool.forget(range_)
        range_.state = RangeState.DROPPED

    # -- memory --------------------------------------------------------------------------------------------------

    def _make_room(self, length: int, now: float, *, demanded: bool) -> bool:
        """True if `length` bytes fit; look-ahead leaves the heads' room alone."""
        return self.pool.make_room(length, now, keep=0 if demanded else self._shares.heads, of_active=demanded)

    def range_size(self) -> int:
        """Bytes of a full range now."""
        return self._shares.range_size

    def _count(self, now: float) -> None:
        self._shares.count(self.files, now - ACTIVE, lambda hosts: self.hosts.preferred(hosts, now))
        behind = max(KEPT, self._shares.streams * BEHIND)
        self.pool.local_kept = behind
        self.pool.kept = behind if now - self._returned > LATELY else self.limits.budget

    def _release_cursor(self, cursor: Cursor) -> None:
        for range_ in self.pool.ahead_of(cursor):
            self.pool.consumed(range_)

    def tick(self, now: float) -> None:
        """Housekeeping: forget idle cursors, give back memory that was unused for a while."""
        self._readahead_done = False  # a host's time to be avoided may be over
        for file in self.files:
            for cursor in file.cursors.forget_idle(now - CURSOR_IDLE):
                self._release_cursor(cursor)
        self._count(now)
        for file in self.files:
            file.read_at = {chunk: when for chunk, when in file.read_at.items() if when > now - LATELY}
            file.passed = {chunk: when for chunk, when in file.passed.items() if when > now - LATELY}
        for range_ in self.pool.idle(now - CONSUMED_IDLE):
            self.pool.drop(range_)


def _taken(attempt: Attempt, now: float) -> float:
    """Seconds that its host has taken so far, or took in all."""
    return (attempt.received_at or now) - attempt.started
