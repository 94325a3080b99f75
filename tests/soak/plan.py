"""The plan of kills and their order: a function of the seed alone, so that a run can be repeated. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Kill", "make_plan"]

_WORKER, _PAUSE = 0.7, 0.15  # the rest: a DataNode is killed
_EARLY = 0.15


@dataclass(frozen=True, slots=True)
class Kill:
    """One fault. Times in seconds.

    kind: worker (SIGKILL), kill (SIGKILL of DataNode `node`, restarted `down` later) or pause (SIGSTOP of it, SIGCONT
    `down` later). It comes `wait` after the one before. An `early` kill of a worker comes as soon as there is one;
    others wait until the worker has answered, since three deaths without an answer end a mount, as is documented.
    """

    kind: str
    wait: float
    node: str = ""
    down: float = 0.0
    early: bool = False


def make_plan(seed: int, kills: int, nodes: Sequence[str], pause_between: float) -> list[Kill]:
    """`kills` faults on average `pause_between` seconds apart; never two early ones of a worker in a row."""
    rng = random.Random(seed)
    plan: list[Kill] = []
    early = False
    for _ in range(kills):
        wait = rng.uniform(0, 2 * pause_between)
        chance, node, down = rng.random(), rng.choice(nodes), rng.uniform(0, 8)
        if chance < _WORKER:
            early = not early and rng.random() < _EARLY
            plan.append(Kill("worker", wait, early=early))
        else:
            plan.append(Kill("pause" if chance < _WORKER + _PAUSE else "kill", wait, node, down))
    return plan
