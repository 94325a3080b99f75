"""What the deaths of workers say: that the next one will fare no better, or that there is no hurry to start it."""

from __future__ import annotations

__all__ = ["Deaths"]

_DEATHS = 3
_DEATHS_WITHIN = 60.0

_MANY = 10
_MANY_WITHIN = 10.0


class Deaths:
    """The last deaths: when each was, in seconds, and how many requests had been answered until then."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def note(self, now: float, answered: int) -> None:
        self._seen = [*self._seen[1 - _MANY :], (now, answered)]

    def clear(self) -> None:
        """A death that was wanted says nothing, and neither do those before it."""
        self._seen.clear()

    @property
    def hopeless(self) -> str:
        """`3 workers died within 5 s without answering anything` where that is so, else nothing."""
        last = self._seen[-_DEATHS:]
        if len(last) < _DEATHS or last[-1][1] != last[0][1] or last[-1][0] - last[0][0] >= _DEATHS_WITHIN:
            return ""
        return f"{_DEATHS} workers died within {last[-1][0] - last[0][0]:.0f} s without answering anything"

    @property
    def many(self) -> bool:
        """Whether they die of the same request each time, as it seems, which must not take the whole machine."""
        return len(self._seen) == _MANY and self._seen[-1][0] - self._seen[0][0] < _MANY_WITHIN
