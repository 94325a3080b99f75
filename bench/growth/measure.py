"""Measurement of `bench growth`: tables in processes of their own, files on a cluster of its own without a cap.

The sizes of a case are measured one after the other in each round, so that a slow minute of the machine bends its line
as little as possible. An exponent is made of the sizes of one round.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.growth.mounts import READ, FileCases
from bench.growth.plan import CASES, COST, exponent, ratios, sizes
from bench.growth.tables import OPERATIONS
from bench.harness import Say
from bench.harness.cluster import running
from bench.harness.data import DataFile, contents
from bench.harness.programs import run, run_module
from bench.harness.results import Document, Key, summary
from bench.harness.rounds import ClusterOptions, Rounds, Store

__all__ = ["Options", "measure"]

_LIMIT = 600.0  # seconds of one measurement
_DATANODES = 3


@dataclass(frozen=True, slots=True)
class Options(ClusterOptions):
    """All is as in other benchmarks on HDFS."""


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each case. Raises BenchError where nothing can be measured."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-growth-") as scratch,
        running(options.name, say, keep=options.keep, datanodes=_DATANODES) as cluster,
    ):
        cluster.set_rate(0)  # an instance that was running may be capped
        done = Rounds.begin("growth", options, cluster.facts(0, None), summary(ratios()), say, store)
        memory = Path(scratch, "memory")
        memory.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={2 * READ}", "bench-growth", memory)
        try:
            with (memory / "data").open("wb") as file:
                for piece in contents(DataFile("data", READ, READ), 0, READ):
                    file.write(piece)
            files = FileCases(cluster, Path(scratch), memory)
            for number in range(done.rounds):
                for case in options.cases or CASES:
                    for size in sizes(case, quick=options.quick):
                        done.take(case, str(size), number, partial(_measure, files, case, size))
                    _note_exponent(done, case, number, options)
                    done.keep()
        finally:
            run("umount", memory)
    return done.document


def _measure(files: FileCases, case: str, size: int) -> dict[str, float]:
    if case not in OPERATIONS:
        return files.measure(case, size)
    folder = files.work / "tables"
    folder.mkdir()
    try:
        return run_module("bench.growth.tables", [case, str(size), str(folder)], "", _LIMIT, {})
    finally:
        shutil.rmtree(folder)


def _note_exponent(done: Rounds, case: str, number: int, options: Options) -> None:
    """Add the exponent of a case, of the sizes that were measured in this round."""
    metric = COST.get(case, "time")
    series = {size: done.samples.get(Key(case, str(size), metric)) for size in sizes(case, quick=options.quick)}
    costs = {size: values[number] for size, values in series.items() if number in values}
    if len(costs) > 1:
        done.samples.add(case, "exponent", number, {"exponent": exponent(costs)})
