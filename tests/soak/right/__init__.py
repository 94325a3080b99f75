"""Checks of promises that hold under races, partitions and damage: `./scripts/soak --right`.

Each module here checks one promise many times, at points that follow from a seed, and offers `check(context)`, which
answers counters and raises `Violation` at the first broken promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.tools.hdfs import HdfsInstance

__all__ = ["Context", "Violation"]


def _no_cluster() -> HdfsInstance:
    raise AssertionError("this check is made without a cluster")


class Violation(AssertionError):
    """A promise was broken; the message says which one, where, and at which step of the seed."""


@dataclass(frozen=True)
class Context:
    """`scale` is the share of the full counts, 1.0 for the figures in docs/soak.md.

    folder: empty, for this check alone. hdfs: starts a cluster at the first call and answers the same one afterwards;
    the command ends it. A check at a small scale may do without.
    """

    seed: int
    scale: float
    folder: Path
    say: Callable[[str], None]
    hdfs: Callable[[], HdfsInstance] = _no_cluster

    def count(self, full: int) -> int:
        """The number of tries where the full run makes `full`: at least one."""
        return max(1, round(full * self.scale))

    def random(self, purpose: str) -> random.Random:
        """A generator that follows from the seed and the purpose alone."""
        return random.Random(f"{self.seed}/{purpose}")
