"""How the memory budget is shared among streams. Pure; see the package's essay."""

from __future__ import annotations

from collections.abc import Iterable

from stripefs.layout.blocks import CHUNK
from stripefs.read.policy.file import FilePlan

__all__ = ["Shares"]


class Shares:
    """`budget` bytes for everything, ranges of `range_size` bytes at most. Counts streams when told to."""

    def __init__(self, budget: int, range_size: int) -> None:
        self._budget = budget
        self._range_size = range_size
        self._streams = self._groups = 1
        self._between = 0

    @property
    def heads(self) -> int:
        """Bytes that look-ahead leaves alone: one range for every stream."""
        return self._streams * self.range_size

    @property
    def range_size(self) -> int:
        """Bytes of a full range now: less than the setting when many streams share the budget; whole chunks."""
        fair = self._budget // (4 * self._streams)
        return max(CHUNK, min(self._range_size, fair) // CHUNK * CHUNK)

    @property
    def share(self) -> int:
        """How far ahead one stream may look. Looking further than the memory it may fill was measured (simulated) to
        lose up to half the speed: memory that far bytes hold is missing when a busy host gets to the near ones."""
        room = self._budget - self.heads - min(self._between, self._budget // 2)
        return max(CHUNK, room // self._groups)

    def count(self, files: Iterable[FilePlan], since: float) -> None:
        """Count the streams that moved after `since`, and those that do not begin in the look-ahead of another.

        Those that do share it: what lies between them is in memory once, for all of them.
        """
        streams = groups = between = 0
        for file in files:
            file.cursors.find_ended()
            moving = [cursor for cursor in file.cursors if cursor.streaming and cursor.active(since)]
            streams += len(moving)
            last, reached = 0, -1
            for cursor in sorted(moving, key=lambda cursor: cursor.front):
                if reached < cursor.front:
                    groups += 1
                else:
                    between += cursor.front - last
                last, reached = cursor.front, cursor.front + cursor.window
        self._streams, self._groups, self._between = max(1, streams), max(1, groups), between
