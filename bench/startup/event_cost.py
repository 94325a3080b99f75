"""The cost of start-up events to a job of some seconds: alone, writing its own, and under `imagefs startup trace`.

`measure` is for the benchmark of whole starts, `python -m bench.startup.event_cost` for itself. The job imports numpy,
reads a file of 500 MB and computes; it is run again and again, the ways in turn, and of each way the shortest run
counts: other work of the machine only ever adds.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy

from bench.harness import BenchError
from stripefs.startup_events import default_writer
from stripefs.startup_imports import time_imports

__all__ = ["Cost", "measure"]

MB = 1_000_000
SIZE = 500 * MB
PIECE = 4 * MB
STEPS = 200
"""Products of matrices, each with an event of its own: more than the start of any job has in a second."""


class Cost(NamedTuple):
    """Of each way, `plain`, `own` and `traced`, the shortest run and the least processor time, in seconds. Processor
    time, which the tracer's is part of, is what a machine that is busy with other things can still be measured by."""

    wall: Mapping[str, float]
    processor: Mapping[str, float]

    def ratio(self, way: str) -> float:
        """The time of a way as a share of the time without events."""
        return self.wall[way] / self.wall["plain"]


def measure(folder: Path, rounds: int = 5) -> Cost:
    """Run the job in each way so many times. folder: for the file, and for the events, which are removed."""
    file, spool = folder / "events-job.bin", folder / "events-job-spool"
    if not file.exists() or file.stat().st_size != SIZE:
        file.write_bytes(os.urandom(MB) * (SIZE // MB))
    job = [sys.executable, "-m", "bench.startup.event_cost", "--job", str(file)]
    trace = [str(Path(sys.executable).with_name("imagefs")), "startup", "trace", "--events", str(spool), "--"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BOOTSEER_")}
    ways = {
        "plain": (job, environ),
        "own": (job, {**environ, "BOOTSEER_EVENTS": str(spool)}),
        "traced": ([*trace, *job], environ),
    }
    wall: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):  # the first warms caches
        for way, (line, variables) in ways.items():
            begin = time.perf_counter()
            _, status, usage = os.wait4(os.posix_spawn(line[0], line, variables), 0)
            wall[way].append(time.perf_counter() - begin)
            processor[way].append(usage.ru_utime + usage.ru_stime)
            if status:
                raise BenchError(f"the job ended with {os.waitstatus_to_exitcode(status)}")
            if way != "plain" and not any(spool.glob("*.jsonl")):
                raise BenchError("the job wrote no events")
            shutil.rmtree(spool, ignore_errors=True)
    return Cost(*({way: min(times[1:]) for way, times in each.items()} for each in (wall, processor)))


def _job(file: str) -> None:
    """Without BOOTSEER_EVENTS the same calls write nothing."""
    events = default_writer()
    with events.stage("checkpoint", file), open(file, "rb", buffering=0) as source:
        checksum = 0
        while piece := source.read(PIECE):
            checksum = zlib.crc32(piece, checksum)
    values = numpy.random.default_rng(checksum).random((1000, 1000))
    for step in range(STEPS):
        with events.stage("compile", f"step {step}"):
            values = values @ values
            values /= numpy.abs(values).max()
    events.instant("ready")


def _main() -> None:
    if sys.argv[1:2] == ["--job"]:
        _job(sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        cost = measure(Path(folder))
    print(f"{'way':7} {'wall':>8} {'ratio':>7} {'processor':>10} {'ratio':>7}")
    for way, wall in cost.wall.items():
        used = cost.processor[way]
        print(f"{way:7} {wall:6.3f} s {cost.ratio(way):7.4f} {used:8.3f} s {used / cost.processor['plain']:7.4f}")


if __name__ == "__main__":
    if os.environ.get("BOOTSEER_EVENTS") and "BOOTSEER_IMPORTS" not in os.environ:
        time_imports()
    _main()
