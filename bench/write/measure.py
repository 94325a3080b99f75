"""`bench write`: runs the plan on a cluster of its own and draws the document from the samples.

Order: the cluster comes up without a cap and is warmed up (`warm`); then each DataNode is capped and the cases follow.
Each round of a case begins one run further on, so that no system always follows the same other; `read_back` goes
through its round right after that of `write`, whose files it reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import peers
from bench.cluster import BenchError, Cluster, Say, running
from bench.data import GIB, MIB
from bench.environment import first_touch, machine, packages, version
from bench.ratios import sum_up
from bench.results import Document, Samples
from bench.rounds import Options, Rounds, how_many, in_turn
from bench.write.lab import WriteLab
from bench.write.plan import BLOCK, CASES, STREAMS, Run, choose, derive, ratios, runs
from bench.write.warm import facts, warm_up

__all__ = ["WriteOptions", "draw", "measure", "sequence"]

CAPPED = 40e6  # bytes a second of each DataNode
_FAMILIES = ("raw_placed", "raw_native")


@dataclass(frozen=True, slots=True)
class WriteOptions(Options):
    """`size` in bytes and `listed` 0 mean as usual."""

    size: int = 0
    listed: int = 0

    @property
    def file_size(self) -> int:
        return self.size or (256 * MIB if self.quick else 2 * GIB)

    @property
    def files(self) -> int:
        return self.listed or (1000 if self.quick else 10_000)


def measure(options: WriteOptions, say: Say, store: Callable[[Document], None]) -> Document:
    """Measure. Hands what there is to `store` after each round, and answers the whole.

    Raises BenchError where nothing can be measured; what one system cannot do becomes a note.
    """
    notes: list[str] = []
    rclone = _rclone(options, notes, say)
    chosen = choose(runs(quick=options.quick, rclone=rclone is not None), options.cases)
    rounds = how_many(options.rounds, quick=options.quick)
    document = Document("write", version(), {}, notes=notes)
    with (
        tempfile.TemporaryDirectory(prefix="bench-write-") as scratch,
        running(options.name, say, keep=options.keep) as cluster,
    ):
        document.environment = _environment(cluster, options, rounds, rclone)
        lab = WriteLab(cluster, options.file_size, options.files, Path(scratch), rclone)
        lab.prepare()
        done = Rounds(rounds=rounds, say=say, notes=notes)
        cluster.set_rate(0)  # an instance that was running may still be capped
        warmed = warm_up(lab, say)
        document.environment["warm_up"] = facts(warmed)
        notes += [
            f"warm-up, {way}: rising still after {one.gib:g} GiB" for way, one in warmed.items() if not one.steady
        ]
        cluster.set_rate(CAPPED)
        for number, turn in sequence(chosen, rounds):
            for one in turn:
                done.take(one.case, one.system, number, partial(lab.measure, one, number))
            derive(done.samples, number)
            draw(done.samples, document)
            store(document)
    return document


def sequence(chosen: Sequence[Run], rounds: int) -> list[tuple[int, list[Run]]]:
    """(round, its runs), in the order in which they are made; see the top of this file."""
    made = []
    for cases in (("write", "read_back"), *((case,) for case in CASES if case not in ("write", "read_back"))):
        for number in range(rounds):
            turn: list[Run] = []
            for case in cases:
                turn += in_turn([run for run in chosen if run.case == case], number)
            if turn:
                made.append((number, turn))
    return made


def draw(samples: Samples, document: Document) -> None:
    """Set the document's rows and ratios anew; a family of raw clients is called after its best member."""
    for case in ("write", "write_repl2"):
        for family in _FAMILIES:
            samples.call(case, samples.best(case, [f"{family}:{count}" for count in STREAMS]), family)
    document.rows = samples.rows()
    document.ratios = sum_up(samples, ratios())


def _rclone(options: WriteOptions, notes: list[str], say: Say) -> Path | None:
    """rclone's binary; a quick run neither builds nor measures it."""
    if options.quick:
        notes.append("rclone is left out of quick runs")
        return None
    try:
        return peers.build_rclone(say)
    except BenchError as error:
        notes.append(str(error))
        return None


def _environment(cluster: Cluster, options: WriteOptions, rounds: int, rclone: Path | None) -> dict[str, Any]:
    """Facts as JSON values; sizes in MiB, rates in MB/s, load as the kernel's average of 15 minutes."""
    return {
        **machine(first_touch()),
        "packages": packages(),
        "hadoop": "3.4.2",
        "rclone": peers.RCLONE_VERSION if rclone else None,
        "datanodes": len(cluster.datanodes),
        "rate_mb_s": CAPPED / 1e6,
        "file_mib": options.file_size // MIB,
        "block_mib": BLOCK // MIB,
        "listed": options.files,
        "rounds": rounds,
        "quick": options.quick,
    }
