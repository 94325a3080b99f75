"""How the memory budget is shared among streams and hosts. Pure; see the package's essay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stripefs.format.blocks import CHUNK, Block
from stripefs.read.policy.cursors import Cursor
from stripefs.read.policy.file import FilePlan

__all__ = ["Shares"]

LEAST_RANGE = 2 * CHUNK
"""Ranges are not cut below this for the sake of busy hosts: 2 MiB take a 40 MB/s host 50 ms, and a request to it costs
5 to 20 ms. Simulated, three ranges of 1 MiB a host lose more to that than to hosts that stand idle."""

LOOKED_AT = 256
"""Blocks ahead of a stream whose hosts are counted: more hosts than memory is ever short for."""


class Shares:
    """`budget` bytes for everything, ranges of `range_size` bytes at most. Counts streams when told to.

    `threads` reads in all and `per_host` at one host may look ahead.
    """

    def __init__(self, budget: int, range_size: int, *, threads: int = 1, per_host: int = 1) -> None:
        self._budget = budget
        self._range_size = range_size
        self._threads = threads
        self._per_host = per_host
        self._streams = self._groups = 1
        self._between = 0
        self._spread = 1
        self._longest = range_size

    @property
    def streams(self) -> int:
        """Streams that move, at least one."""
        return self._streams

    @property
    def heads(self) -> int:
        """Bytes that look-ahead leaves alone: one range for every stream."""
        return self._streams * self.range_size

    @property
    def range_size(self) -> int:
        """Bytes of a full range now; whole chunks.

        Less than the setting when many streams share the budget, when blocks are shorter, and when it cannot keep all
        hosts busy that lie ahead: then it is the power of two that comes nearest to what each host's reads may have.
        """
        fair = self._budget // (4 * self._streams)
        each = self._budget // (self._spread * self._depth)
        even = max(LEAST_RANGE, 1 << (each * 2 // 3).bit_length())
        return max(CHUNK, min(self._range_size, self._longest, fair, even) // CHUNK * CHUNK)

    @property
    def _depth(self) -> int:
        """Reads at a host that there are threads for."""
        return max(1, min(self._per_host, self._threads // self._spread))

    @property
    def per_host(self) -> int:
        """How many ranges to look ahead for at one host. More than the memory holds for every host would be the share
        of the others, which then stand idle; simulated with 48 MiB and 8 hosts, three ranges of 4 MiB each reach 0.68
        of the hosts' rate, one 0.95."""
        room = self._budget - self.heads
        return max(1, min(self._depth, room // (self._spread * self.range_size)))

    @property
    def share(self) -> int:
        """How far ahead one stream may look. Looking further than the memory it may fill was measured (simulated) to
        lose up to half the speed: memory that far bytes hold is missing when a busy host gets to the near ones."""
        room = self._budget - self.heads - min(self._between, self._budget // 2)
        return max(CHUNK, room // self._groups)

    def count(
        self, files: Iterable[FilePlan], since: float, serving: Callable[[tuple[str, ...]], Sequence[str]]
    ) -> None:
        """Count the streams that moved after `since`, those that do not begin in the look-ahead of another, and the
        hosts that serve the blocks ahead of them, `serving(hosts of a block)`.

        Streams that do begin there share it: what lies between them is in memory once, for all of them.
        """
        streams = groups = between = 0
        ahead: list[Block] = []
        for file in files:
            file.cursors.find_ended()
            moving = [cursor for cursor in file.cursors if cursor.streaming and cursor.active(since)]
            # A reader that is on its way here from another file has its share there, one that is through needs none.
            ahead += [block for cursor in moving if cursor.after for block in _ahead(file, cursor, cursor.window)]
            moving = [cursor for cursor in moving if cursor.after is None and cursor.front < file.length]
            streams += len(moving)
            last, reached = 0, -1
            for cursor in sorted(moving, key=lambda cursor: cursor.front):
                ahead += _ahead(file, cursor, self._budget)
                if reached < cursor.front:
                    groups += 1
                else:
                    between += cursor.front - last
                last, reached = cursor.front, cursor.front + cursor.window
        self._streams, self._groups, self._between = max(1, streams), max(1, groups), between
        self._spread = max(1, len({host for block in ahead for host in serving(block.hosts)}))
        self._longest = max((block.length for block in ahead), default=self._range_size)


def _ahead(file: FilePlan, cursor: Cursor, reach: int) -> list[Block]:
    """The known blocks within `reach` bytes ahead of the cursor."""
    found: list[Block] = []
    offset = max(0, cursor.start - reach) if cursor.backward else cursor.position
    end = cursor.start if cursor.backward else cursor.position + reach
    while offset < end and len(found) < LOOKED_AT:
        block = file.blocks.find(offset)
        if block is None:
            break
        found.append(block)
        offset = block.offset + block.length
    return found
