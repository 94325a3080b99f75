"""Events of synthetic starts with a known truth: a fleet of nodes, and one cause of delay planted on one of them.

Each node has its own boot and a wall clock that is off by some 0.1 s. Durations scatter, every rank waits a little for
some DataNode, and events are lost if `loss` says so. All numbers follow from the seed.

`measure_report` times `imagefs startup report` over them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CAUSES", "Fleet", "lines", "measure_report"]

CAUSES = ("datanode", "store", "link", "cold cache", "dependency miss", "on-demand", "slow node", "clock")
"""The causes that can be planted."""

_SECOND = 10**9
_CHECKPOINT = 4 << 30
_FILES = 4


@dataclass(frozen=True, slots=True)
class Fleet:
    """A start of `nodes` times `ranks` ranks. cause: planted on node number `victim`, "" for none; "datanode" delays a
    third of the others by less. delay: seconds it costs. scale: all durations are so many times longer. loss: the share
    of events that are missing."""

    nodes: int
    ranks: int = 1
    cause: str = ""
    victim: int = 0
    delay: float = 20.0
    run: str = "run-1"
    prefix: str = "node"
    seed: int = 0
    scale: float = 1.0
    loss: float = 0.0

    @property
    def host(self) -> str:
        """The DataNode that is slow if that is the cause."""
        return f"dn{self.seed % 8}"

    def node(self, number: int) -> str:
        return f"{self.prefix}-{number:04d}"


class _Node:
    """Writes the events of one node. Times are seconds since the start of the job, on a true clock."""

    def __init__(self, fleet: Fleet, number: int, chance: random.Random) -> None:
        self._fleet, self._name = fleet, fleet.node(number)
        self._boot = f"{chance.getrandbits(64):016x}"
        self._booted = chance.randrange(10**5, 10**7) * _SECOND
        skew = chance.gauss(0, 0.1) + (fleet.delay if fleet.cause == "clock" and number == fleet.victim else 0)
        self._wall = 1_760_000_000 * _SECOND + fleet.seed * 7200 * _SECOND + int(skew * _SECOND)
        self._chance = chance
        self._events: list[dict[str, Any]] = []

    def event(
        self, moment: float, event: str, stage: str, name: str, rank: int | None, span: str, facts: dict[str, Any]
    ) -> None:
        pid = 100 if rank is None else 1000 + rank
        source = "imagefs" if rank is None else "job"
        kind = "wait" if name in ("stall", "wait") else "work"
        passed = round(moment * _SECOND)
        fields = {
            "v": 1, "wall_ns": self._wall + passed, "mono_ns": self._booted + passed, "event": event, "stage": stage,
            "name": name, "job": "train", "run": self._fleet.run, "attempt": 0, "node": self._name, "rank": rank,
            "boot": self._boot, "pid": pid, "source": source, "span": span, "kind": kind, "facts": facts,
        }  # fmt: skip
        self._events.append({key: value for key, value in fields.items() if value not in ("", None, {})})

    def span(self, begin: float, seconds: float, stage: str, name: str, rank: int | None = None, **facts: Any) -> float:
        span = f"{self._chance.getrandbits(64):016x}"
        self.event(begin, "begin", stage, name, rank, span, {})
        self.event(begin + seconds, "end", stage, name, rank, span, facts)
        return begin + seconds

    def lines(self) -> Iterator[bytes]:
        """The events in the order of time, numbered for each process."""
        numbers: Counter[int] = Counter()
        for fields in sorted(self._events, key=lambda one: one["mono_ns"]):
            numbered = {**fields, "seq": numbers[fields["pid"]]}
            numbers[fields["pid"]] += 1
            if self._chance.random() >= self._fleet.loss:
                yield json.dumps(numbered, separators=(",", ":")).encode() + b"\n"


def lines(fleet: Fleet) -> Iterator[bytes]:
    """The events of a start, node after node, each node's in the order of time."""
    chance = random.Random(f"{fleet.seed} {fleet.cause}")
    made = [_Node(fleet, number, random.Random(chance.getrandbits(64))) for number in range(fleet.nodes)]
    arrivals = [_until_rendezvous(fleet, number, node, chance) for number, node in enumerate(made)]
    release = max(max(each.values()) for each in arrivals) + 0.5
    for node, each in zip(made, arrivals, strict=True):
        for rank, arrival in each.items():
            left = release + chance.uniform(0, 0.002)
            node.span(arrival, left - arrival, "rendezvous", "init_process_group", rank)
            now = node.span(left, fleet.scale * chance.uniform(3.0, 3.3), "compile", "graph", rank)
            now = node.span(now, fleet.scale * chance.uniform(1.0, 1.1), "first_batch", "loader", rank)
            now = node.span(now, fleet.scale * chance.uniform(2.0, 2.1), "first_step", "", rank)
            node.event(now, "instant", "ready", "", rank, "", {})
        yield from node.lines()


def _until_rendezvous(fleet: Fleet, number: int, node: _Node, chance: random.Random) -> dict[int, float]:
    """Write a node's events until its ranks meet the others; when each of them does."""
    cause = fleet.cause if number == fleet.victim else ""
    delay = fleet.delay if cause else 0.0

    def about(seconds: float) -> float:
        return fleet.scale * seconds * chance.lognormvariate(0, 0.08)

    slow = 1.0 + delay / 10 if cause == "slow node" else 1.0
    now = node.span(chance.uniform(0, 0.3), about(3.0) * slow, "container", "exec")
    node.span(now - 1.0, about(0.8), "image", "attach")
    if cause == "dependency miss":
        node.event(now, "instant", "dependencies", "miss", None, "", {"key": "k1"})
        now = node.span(now, delay, "dependencies", "install", key="k1")
    else:
        node.event(now, "instant", "dependencies", "hit", None, "", {"key": "k1"})
    now = node.span(now, about(0.5), "dependencies", "mount", key="k1")
    imports = about(6.0) * slow
    misses, waited = 40 + chance.randrange(20), about(0.2)
    if cause == "on-demand":
        imports, misses, waited = imports + delay, misses * 50, waited + delay * 0.9
    facts = {"bytes": misses << 16, "misses": misses, "hits": 3000, "wait_ns": int(waited * _SECOND)}
    arrivals = {}
    for rank in range(number * fleet.ranks, (number + 1) * fleet.ranks):
        then = node.span(now, imports * chance.lognormvariate(0, 0.03), "imports", "torch", rank)
        then = node.span(then, about(2.0) * slow, "model", "build", rank)
        arrivals[rank] = _checkpoint(fleet, number, node, chance, rank, then)
    node.event(now + imports, "instant", "image", "on demand", None, "", facts)
    return arrivals


def _checkpoint(fleet: Fleet, number: int, node: _Node, chance: random.Random, rank: int, now: float) -> float:
    cause, delay = fleet.cause, fleet.delay
    stalls: list[tuple[float, str, str]] = [(chance.uniform(0.05, 0.8), "datanode", f"dn{chance.randrange(8)}")]
    cached, longer = 0.8 + chance.uniform(-0.05, 0.05), 0.0
    if cause == "datanode" and (number == fleet.victim or number % 3 == fleet.victim % 3):
        stalls.append((delay if number == fleet.victim else min(0.8, delay / 10), "datanode", fleet.host))
    elif number == fleet.victim and cause in ("store", "link"):
        stalls.append((delay, cause, "nn1" if cause == "store" else ""))
    elif number == fleet.victim and cause == "cold cache":
        cached, longer = 0.0, delay
    size = _CHECKPOINT // _FILES
    for file in range(_FILES):
        stall, why, host = stalls[file] if file < len(stalls) else (0.0, "", "")
        taken = fleet.scale * 2.5 * chance.lognormvariate(0, 0.1) + longer / _FILES + stall
        if stall:
            node.span(now + 0.1, stall, "checkpoint", "stall", rank, cause=why, **({"host": host} if host else {}))
        here = int(size * cached)
        name = f"model-{file:05d}.safetensors"
        facts = {"bytes": size, "cache_bytes": here, "store_bytes": size - here}
        now = node.span(now, taken, "checkpoint", name, rank, **facts)
    return now


# -- the time of the report --------------------------------------------------------------------------------------------


_REPORT = "import sys; from imagefs.cli.main import run; sys.exit(run())"


def measure_report(folder: Path, nodes: int = 5000, ranks: int = 2, rounds: int = 5) -> list[tuple[float, float]]:
    """Seconds of the report on such a start, and of plain json.loads of the same lines, in turn for each round.

    The events are written into the folder, a file for each node. The report is a process of its own: interpreter,
    imports and output count; of the parsing only reading the files and json.loads.
    """
    content: dict[str, list[bytes]] = {}
    for line in lines(Fleet(nodes, ranks, "datanode", victim=7, loss=0.0001)):
        content.setdefault(json.loads(line)["node"], []).append(line)
    for node, some in content.items():
        (folder / f"{node}.jsonl").write_bytes(b"".join(some))
    files = sorted(folder.iterdir())
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for file in files:
            with file.open("rb") as opened:
                for line in opened:
                    json.loads(line)
        parsed = time.perf_counter()
        command = [sys.executable, "-c", _REPORT, "startup", "report", str(folder), "--json"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append((time.perf_counter() - parsed, parsed - begin))
    return found
