"""Sets of byte ranges: which parts of a staged file take up space, and which could not be written. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["Extents"]


class Extents:
    """Half-open ranges [start, stop) in bytes, apart from each other and in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total = 0
        """Bytes in all ranges together."""

    def __bool__(self) -> bool:
        return bool(self._starts)

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._stops, strict=True))

    def missing(self, start: int, stop: int) -> int:
        """How many bytes of [start, stop) are in no range."""
        if stop <= start:
            return 0
        first, last = self._touching(start, stop)
        held = sum(
            min(stop, self._stops[at]) - max(start, self._starts[at])
            for at in range(first, last)
            if self._stops[at] > start and self._starts[at] < stop
        )
        return stop - start - held

    def add(self, start: int, stop: int) -> None:
        if stop <= start:
            return
        self.total += self.missing(start, stop)
        first, last = self._touching(start, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, start: int, stop: int) -> None:
        if stop <= start:
            return
        self.total -= stop - start - self.missing(start, stop)
        first, last = self._touching(start, stop)
        left = [(self._starts[at], min(start, self._stops[at])) for at in range(first, last)]
        right = [(max(stop, self._starts[at]), self._stops[at]) for at in range(first, last)]
        kept = [(begin, end) for begin, end in sorted({*left, *right}) if begin < end]
        self._starts[first:last] = [begin for begin, _ in kept]
        self._stops[first:last] = [end for _, end in kept]

    def cut(self, at: int) -> None:
        """Keep nothing at or after `at`."""
        if self._stops:
            self.remove(at, max(at, self._stops[-1]))

    def _touching(self, start: int, stop: int) -> tuple[int, int]:
        """Indexes [first, last) of the ranges that overlap [start, stop) or lie next to it."""
        return bisect_left(self._stops, start), bisect_right(self._starts, stop)
