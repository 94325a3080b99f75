"""Measurement of `bench write`, on a cluster of its own.

Order: the cluster comes up without a cap and is warmed up; then each DataNode is capped and the cases follow. Each
round of a case begins one run further on, so that no system always follows the same other; `read_back` goes through its
round right after that of `write`, whose files it reads.

Warming up: fresh JVMs write at less than half and read at three quarters of their speed, for some GiB. Each way of the
data is taken again and again until it has stopped getting faster: two runs in a row, since machines are shared, that
are not 5% faster than the fastest before. At least 6 GiB and at most 12 a way: WebHDFS writes of fresh DataNodes stood
at 260 MB/s from 2.5 GiB to 3.5, and rose to 370 by 7. The mount has ways of its own, since its many short files are
other work for a NameNode; so has listing, which reads a manifest of some KiB for each file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import Say, peers
from bench.harness.cluster import CAPPED, running
from bench.harness.data import GIB, MIB, DataFile
from bench.harness.results import Document, Samples, sum_up
from bench.harness.rounds import ClusterOptions, Rounds, Store, in_turn
from bench.read.driver import ReadDriver
from bench.write.driver import WriteDriver
from bench.write.plan import BLOCK, CASES, STREAMS, Run, choose, derive, ratios, runs

__all__ = ["Options", "Warmed", "measure", "sequence", "since_gain", "summarize", "warm", "warm_facts"]

_FAMILIES = ("raw_placed", "raw_native")
_GAIN = 0.05
_SLOWER = 2  # runs in a row
_LEAST, _MOST = 6 * GIB, 12 * GIB  # bytes of one way
_SIZE = 512 * MIB  # bytes of one run, so that starting its client weighs little
_READERS = 32  # threads
_LISTINGS = (3, 12)  # at least, at most


@dataclass(frozen=True, slots=True)
class Options(ClusterOptions):
    """`size` in bytes and `listed` 0 mean as usual."""

    size: int = 0
    listed: int = 0

    @property
    def file_size(self) -> int:
        return self.size or (256 * MIB if self.quick else 2 * GIB)

    @property
    def files(self) -> int:
        return self.listed or (1000 if self.quick else 10_000)


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each part. Raises BenchError where nothing can be measured."""
    notes = ["rclone is left out of quick runs"] if options.quick else []
    rclone = None if options.quick else peers.try_rclone(notes, say)
    chosen = choose(runs(quick=options.quick, rclone=rclone is not None), options.cases)
    with (
        tempfile.TemporaryDirectory(prefix="bench-write-") as scratch,
        running(options.name, say, keep=options.keep) as cluster,
    ):
        size = options.file_size
        facts = {**cluster.facts(size, rclone), "block_mib": BLOCK // MIB, "listed": options.files}
        done = Rounds.begin("write", options, facts, summarize, say, store)
        driver = WriteDriver(cluster, size, options.files, Path(scratch), rclone)
        driver.prepare()
        cluster.set_rate(0)  # an instance that was running may still be capped
        warmed = warm_up(driver, say)
        done.document.environment["warm_up"] = warm_facts(warmed)
        done.document.notes += notes
        for way, one in warmed.items():
            if not one.steady:
                done.note(f"warm-up, {way}: rising still after {one.gib:g} GiB")
        cluster.set_rate(CAPPED)
        for number, turn in sequence(chosen, done.rounds):
            for run in turn:
                done.take(run.case, run.system, number, partial(driver.measure, run, number))
            derive(done.samples, number)
            done.keep()
    return done.document


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


def summarize(samples: Samples, document: Document) -> None:
    """Set the document's rows and ratios anew; a family of raw clients is called after its best member."""
    for case in ("write", "write_repl2"):
        for family in _FAMILIES:
            samples.call_best(case, [f"{family}:{count}" for count in STREAMS], family)
    document.rows, document.ratios = samples.rows(), sum_up(samples, ratios())


# -- warming up --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Warmed:
    """The rates of the runs of one way, in MB/s; whether they had stopped rising; how many bytes a run has."""

    rates: Sequence[float]
    steady: bool
    size: int

    @property
    def gib(self) -> float:
        return len(self.rates) * self.size / GIB


@dataclass(frozen=True, slots=True)
class _Way:
    """`run` moves `size` bytes and answers MB/s; `least` and `most` bytes are moved by all runs."""

    size: int
    run: Callable[[], float]
    least: int = _LEAST
    most: int = _MOST


def warm_up(driver: WriteDriver, say: Callable[[str], None]) -> dict[str, Warmed]:
    """Warm all DataNodes, which should have no cap: behind one, those that still compile are as fast as any others."""
    file = DataFile("raw/warm-up", _SIZE, BLOCK)
    reader = ReadDriver(driver.cluster)
    manifests = driver.manifests()
    ways = {
        "write native": _Way(_SIZE, lambda: driver.raw("native", STREAMS[0], 1, _SIZE)["throughput"]),
        "write webhdfs": _Way(_SIZE, lambda: driver.raw("placed", STREAMS[0], 1, _SIZE)["throughput"]),
        "write stripefs": _Way(driver.size, lambda: driver.through("striped", 1)["throughput"]),
        "read native": _Way(_SIZE, lambda: reader.client(file, "native", _READERS)["throughput"]),
        "read webhdfs": _Way(_SIZE, lambda: reader.client(file, "webhdfs", _READERS)["throughput"]),
        "read stripefs": _Way(driver.size, lambda: driver.read_back("striped", _SIZE)["throughput"]),
        "list stripefs": _Way(
            manifests,
            lambda: manifests / 1e6 / driver.listing("striped")["time"],
            *(count * manifests for count in _LISTINGS),
        ),
    }
    driver.cluster.write([file], say)
    found = {}
    for name, way in ways.items():
        found[name] = warm(way.run, way.size, way.least, way.most)
        shown = ", ".join(f"{rate:.0f}" for rate in found[name].rates)
        say(f"warm-up, {name}: {shown} MB/s{'' if found[name].steady else ', rising still'}")
    return found


def warm(run: Callable[[], float], size: int, least: int = _LEAST, most: int = _MOST) -> Warmed:
    """Call `run`, which moves `size` bytes and answers MB/s, until it is steady after `least` bytes or after `most`."""
    rates: list[float] = []
    while (len(rates) + 1) * size <= most:
        rates.append(run())
        if len(rates) * size >= least and since_gain(rates) >= _SLOWER:
            return Warmed(rates, steady=True, size=size)
    return Warmed(rates, steady=False, size=size)


def since_gain(rates: Sequence[float]) -> int:
    """The number of runs since one was faster by a twentieth than all before it."""
    best, since = 0.0, -1
    for rate in rates:
        since = 0 if rate >= (1 + _GAIN) * best else since + 1
        best = max(best, rate)
    return max(0, since)


def warm_facts(found: Mapping[str, Warmed]) -> dict[str, dict[str, object]]:
    """The warm-up as JSON values."""
    return {
        way: {"mb_s": [round(rate) for rate in one.rates], "gib": one.gib, "steady": one.steady}
        for way, one in found.items()
    }
