"""Read-ahead of streams: which reads continue which (cursors), how far ahead of them it pays to fetch, and the file
that a reader opens next. Pure.

See the package's essay.

**Next file.** Large checkpoints are saved in numbered parts (`model-00002-of-00008.safetensors`,
`pytorch_model-3.bin`), and most loaders read these one after the other. `FileSeries` predicts the next one only with
evidence: the part before this one was read to its end, or the name says that this is the first of several
(`-00001-of-00008`). A rank that reads its own part alone gives none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stripefs.format.blocks import ByteRange

if TYPE_CHECKING:
    from stripefs.read.planner.range_buffer import Range

__all__ = ["ACTIVE", "MAX_CURSORS", "Cursor", "CursorSet", "FileSeries"]

MIB = 1 << 20

FORWARD = 16 * MIB
"""A read this far past a cursor still continues it: mountpoint-s3's forward seek tolerance, and the kernel's
read-ahead, whose requests may arrive out of order."""

BACKWARD = 8 * MIB
"""And this far before its position, for requests that were overtaken: half the kernel's read-ahead. They were
seen to be overtaken by a few MiB at most."""

STEPS_BACK = 3
"""Reads in a row that each begin before all others of a stream, after which it is taken to run backward. One may be a
request that was overtaken. Backward streams are no oddity: copied out of a
mapping, a tensor of 131 MB was seen to be read from its end (memcpy goes downward for some alignments)."""

MAX_CURSORS = 64
"""Streams remembered per file. Loaders use up to 16 threads a process on one file and nodes have 8 processes, whose
reads mostly fall together; a cursor costs a few hundred bytes."""

ACTIVE = 3.0
"""Seconds after which a cursor that nobody moved looks no further ahead, and what it holds may go to those that move.
Readers that jump from tensor to tensor leave a cursor at each; simulated, two such processes took 1.7 times as long
when all of these kept their share of the memory."""

START_WINDOW = 2 * MIB
FLOOR_WINDOW = 32 * MIB
"""A window is not shrunk below this: a 40 MB/s host needs about that much to hide a block switch."""

AHEAD_OF_READ = 64
"""Bytes of look-ahead allowed per byte already read, in a file whose look-ahead was always wanted: a window of 1 GiB
after 16 MiB, and nothing beyond the touched chunk for a reader that stops after a header of 4 KiB. Simulated against 8,
it takes half of what the ramp-up costs a reader of 512 MiB."""

DISTRUST = 32
"""Weight of unwanted read-ahead in lowering that ratio: by half when it comes to 1/32 of what was read, to two when to
all of it. Simulated, readers of shuffled items of 0.5 to 4 MiB fetch 4 to 5 times their bytes with it, and 6.8 times
with 8 bytes of look-ahead per byte at all times."""


class ReadaheadTrust:
    """Outcome of a file's look-ahead, in bytes: `unwanted` was dropped before anybody asked for it."""

    __slots__ = ("read", "unwanted")

    def __init__(self) -> None:
        self.read = 0
        self.unwanted = 0

    @property
    def ahead_of_read(self) -> float:
        """Bytes of look-ahead per byte that a cursor has read."""
        return AHEAD_OF_READ / (1 + DISTRUST * self.unwanted / max(self.read, FLOOR_WINDOW))


class Cursor:
    """One stream of reads through a file, forward or backward. It has read from `start` to `position`."""

    __slots__ = (
        "_credit",
        "_since_starved",
        "_steps_back",
        "_trust",
        "after",
        "consumed",
        "ended",
        "forgotten",
        "index",
        "last_seen",
        "position",
        "rereads",
        "start",
        "window",
    )

    def __init__(self, index: int, offset: int, now: float, trust: ReadaheadTrust) -> None:
        self.index = index
        self._trust = trust
        self.start = offset
        self.position = offset
        self.window = START_WINDOW
        self.consumed = 0
        self.last_seen = now
        self.forgotten = False
        self._since_starved = 0
        self._steps_back = 0
        self._credit = 0
        self.ended = False
        """True if it seems to have reached what others have read; until it moves again."""
        self.after: tuple[Cursor, int] | None = None
        """The cursor of the reader that comes here when it has read the so many bytes of its file, until it comes."""
        self.rereads = False
        """True if it had to wait for what another had read a moment ago: then it wants that again, all of it."""

    def follow(self, other: Cursor) -> None:
        """Go on where `other` looked ahead to: a reader that skips a tensor is still the reader it was."""
        self.window = max(self.window, other.window)
        self._credit = other.consumed + other._credit

    def announce(self, before: Cursor, length: int) -> None:
        """The reader of `before` comes here next, when it is through its file of `length` bytes."""
        self.follow(before)
        self.after = before, length

    @property
    def until(self) -> int:
        """Bytes that its reader has to read elsewhere before it comes here."""
        if self.after is None:
            return 0
        before, length = self.after
        return max(0, length - before.position) + before.until

    @property
    def files_ahead(self) -> int:
        """Files that its reader has to go through before it comes here."""
        return 1 + self.after[0].files_ahead if self.after is not None else 0

    @property
    def seen(self) -> float:
        """Time at which its reader was last seen, here or on its way here."""
        return self.last_seen if self.after is None else max(self.last_seen, self.after[0].seen)

    @property
    def front(self) -> int:
        """Position at which look-ahead begins."""
        return self.start if self.backward else self.position

    def active(self, since: float) -> bool:
        """True if it moved after `since` and has somewhere to go."""
        return self.seen > since and not self.ended

    @property
    def backward(self) -> bool:
        return self._steps_back >= STEPS_BACK

    def distance(self, offset: int) -> int | None:
        """Distance of `offset` from the position where this cursor goes on; None when it does not continue it."""
        gap, below = offset - self.position, self.start - offset
        if -BACKWARD <= gap <= FORWARD and below <= 0 and not self.backward:
            return abs(gap)
        return abs(below) if abs(below) <= BACKWARD and (below > 0 or self._steps_back) else None

    def advance(self, offset: int, size: int, *, starved: bool, limit: int, now: float) -> None:
        """Note a read of [offset, offset + size) and adapt the window, which may not exceed `limit`."""
        if offset < self.start:
            self.start = offset
            self._steps_back += 1
        elif offset + size > self.position:
            self._steps_back = 0
        self.position = max(self.position, offset + size)
        self.consumed += size
        self._trust.read += size
        self.last_seen = now
        self.after = None
        self.ended = False
        if starved:
            self._since_starved = 0
            self.window = max(START_WINDOW, min(max(self.window * 2, self.trusted), limit))
            return
        self._since_starved += size
        if self._since_starved > self.window and self.window > FLOOR_WINDOW:
            self.window = max(FLOOR_WINDOW, self.window * 3 // 4)
            self._since_starved = 0

    def reach(self, limit: int) -> int:
        """Bytes to look ahead: the window, cut to `limit` and by what was read so far."""
        return max(0, min(self.window, limit, self.trusted) - self.until)

    def ahead(self, extent: ByteRange | Range) -> int:
        """Bytes that its reader reads before the extent."""
        if self.backward and extent.end <= self.start:
            return self.start - extent.end
        return extent.offset - self.position + self.until

    def left(self, extent: ByteRange | Range) -> bool:
        """True if the extent lies wholly behind."""
        return extent.end <= self.position and (extent.offset >= self.start or not self.backward)

    @property
    def trusted(self) -> int:
        """Bytes ahead that it will most likely read, by what was read so far."""
        # Look-ahead fetches whole ranges, so less than one must not begin it.
        return int(self._trust.ahead_of_read * (self.consumed + self._credit)) if self.streaming else 0

    @property
    def streaming(self) -> bool:
        """True if whole ranges, not just the touched chunks, are worth fetching."""
        return self.consumed >= MIB or self.after is not None


class CursorSet:
    """The cursors of one file, least recently used first."""

    def __init__(self) -> None:
        self._cursors: dict[int, Cursor] = {}
        self._next = 0
        self.trust = ReadaheadTrust()

    def __iter__(self) -> Iterator[Cursor]:
        return iter(self._cursors.values())

    def match(self, offset: int, now: float) -> tuple[Cursor, Cursor | None]:
        """The cursor that a read at `offset` continues, or a new one; and the one that was forgotten for it."""
        best: Cursor | None = None
        best_distance = 0
        for cursor in self._cursors.values():
            distance = cursor.distance(offset)
            if distance is not None and (best is None or distance < best_distance):
                best, best_distance = cursor, distance
        forgotten = None
        if best is None:
            if len(self._cursors) >= MAX_CURSORS:
                forgotten = self._cursors.pop(next(iter(self._cursors)))
                forgotten.forgotten = True
            best = self._new(offset, now)
        else:
            del self._cursors[best.index]
        self._cursors[best.index] = best
        return best, forgotten

    def announce(self, before: Cursor, length: int, now: float) -> None:
        """A reader comes to this file when it is through that of `before`; nothing where one reads it already."""
        if any(cursor.streaming for cursor in self._cursors.values()):
            return
        # A reader of the header goes on behind it.
        cursor = next(reversed(self._cursors.values()), None) or self._new(0, now)
        self._cursors[cursor.index] = cursor
        cursor.announce(before, length)

    @property
    def announced(self) -> bool:
        """True while a reader is on its way here from another file."""
        return any(cursor.after is not None for cursor in self._cursors.values())

    def _new(self, offset: int, now: float) -> Cursor:
        self._next += 1
        return Cursor(self._next - 1, offset, now, self.trust)

    def passed(self, offset: int, cursor: Cursor) -> int | None:
        """The position to go on at when another stream that began ahead of `cursor` has read the bytes at `offset`.

        Threads that split a file between them (run:ai's streamer, DCP) each run into the start of the next one's part:
        fetching that part again would be waste. A reader that really enters it is served on demand.
        """
        sign, front = (-1, -cursor.start) if cursor.backward else (1, cursor.position)
        position, before = sign * offset, None
        while position != before:
            before = position
            for other in self._cursors.values():
                near, far = sorted((sign * other.start, sign * other.position))
                # Two streams read the bytes that the kernel read ahead past a tensor's end; hence the tolerance.
                began_ahead = front - FORWARD <= near <= position + MIB
                if far > position and began_ahead and other.streaming and other is not cursor:
                    position = far
        return sign * position if position >= sign * offset + MIB else None

    def find_ended(self) -> None:
        """Mark those in front of which another stream has read: most likely they end there."""
        streaming = [cursor for cursor in self._cursors.values() if cursor.streaming]
        for cursor in streaming:
            front = cursor.front
            cursor.ended = any(
                other.start - MIB <= front < other.position + MIB for other in streaming if other.start != cursor.start
            )

    def forget_idle(self, before: float) -> list[Cursor]:
        """Drop and answer the cursors not seen since `before`."""
        idle = [cursor for cursor in self._cursors.values() if cursor.seen < before]
        for cursor in idle:
            del self._cursors[cursor.index]
            cursor.forgotten = True
        return idle


REMEMBERED = 256
"""Files that were read to their end, the latest: an evidence is asked for within a window of the reader."""

_NUMBER = re.compile(rb"\d+")
_TOTAL = re.compile(rb"-of-(\d+)")


class FileSeries:
    """Remembers what was read, by path. Paths of different stores must not meet in one."""

    def __init__(self) -> None:
        self._read: dict[bytes, None] = {}
        self._unread: dict[bytes, None] = {}

    def read(self, path: bytes) -> None:
        """Most of this file has been read."""
        _remember(self._read, path)

    def next(self, path: bytes) -> bytes | None:
        """The file that the reader of this one most likely reads next; None without evidence."""
        for successor, predecessors, first in _numberings(path):
            if successor not in self._unread and (first or any(one in self._read for one in predecessors)):
                return successor
        return None

    def missed(self, path: bytes) -> None:
        """The file that was foretold was not opened. It is not foretold again."""
        _remember(self._unread, path)


def _remember(paths: dict[bytes, None], path: bytes) -> None:
    paths.pop(path, None)
    paths[path] = None
    if len(paths) > REMEMBERED:
        del paths[next(iter(paths))]


def _numberings(path: bytes) -> Iterator[tuple[bytes, tuple[bytes, ...], bool]]:
    """For each number in the file's name, the last first: the path with the next one, those with the one before, and
    whether the name says that it is the first of several."""
    begin = path.rfind(b"/") + 1
    for found in reversed(list(_NUMBER.finditer(path, begin))):
        text, number = found[0], int(found[0])
        if path[: found.start()].endswith(b"-of-"):
            continue
        total = _TOTAL.match(path, found.end())
        if total is not None and number >= int(total[1]):
            continue
        before, after = path[: found.start()], path[found.end() :]
        width = len(text)
        past = {b"%d" % (number - 1), (b"%d" % (number - 1)).rjust(width, b"0")} if number else set()
        successor = before + (b"%d" % (number + 1)).rjust(width, b"0") + after
        yield successor, tuple(before + one + after for one in past), total is not None and number == 1
