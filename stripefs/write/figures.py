"""What the writers of one mount count for people. No I/O; everything happens on trio's thread."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from stripefs.units import Pace

__all__ = ["Figures"]


@dataclass(eq=False)
class Figures:
    """taken: bytes that came in. errors: failed attempts by error, most of which are made again.

    lost: by error, how often what was written could not be kept, made durable or published.
    """

    taken: int = 0
    pace: Pace = field(default_factory=Pace)
    published: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    last_error: dict[str, Any] | None = None
    """`at` in seconds since 1970, `message`."""

    def tick(self, now: float) -> None:
        """To be called about every second."""
        self.pace.tick(now, self.taken)

    def failed(self, what: str, error: Exception) -> None:
        """An attempt at `what` failed."""
        self.errors[type(error).__name__] += 1
        self._note(what, error)

    def lose(self, what: str, error: Exception) -> None:
        """The writer of `what` is told that this error cost what it wrote, or will be."""
        self.lost[type(error).__name__] += 1
        self._note(what, error)

    def _note(self, what: str, error: Exception) -> None:
        self.last_error = {"at": time.time(), "message": f"{what}: {error}"}
