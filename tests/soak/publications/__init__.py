"""Publications of files while writers are held up or cut off: `./scripts/soak --publications`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Context", "Violation"]


class Violation(AssertionError):
    """A promise was broken; the message says which one, where, and at which step of the seed."""


@dataclass(frozen=True)
class Context:
    """`scale` is the share of the full counts, 1.0 for the figures in docs/soak.md."""

    seed: int
    scale: float
    say: Callable[[str], None]

    def count(self, full: int) -> int:
        """The number of tries where the full run makes `full`: at least one."""
        return max(1, round(full * self.scale))

    def random(self, purpose: str) -> random.Random:
        """A generator that follows from the seed and the purpose alone."""
        return random.Random(f"{self.seed}/{purpose}")
