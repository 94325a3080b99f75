"""Measurement of `bench namenode`, on a cluster of its own whose DataNodes are capped as for `bench read`.

Calls are those that the NameNode has counted itself between the moment at which a mount was there and a second after
the program has ended: look-ups, listings, block locations, creations, added blocks, renames, joins, removals. It
counts neither the renewal of a lease nor the end of a file. Each run has a fresh mount, without any knowledge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import BenchError, Say, mounts, peers
from bench.harness.cluster import CAPPED, Cluster, running
from bench.harness.data import GIB, MIB, DataFile
from bench.harness.environment import cold
from bench.harness.mounts import Mount
from bench.harness.programs import run_module
from bench.harness.results import Document, summary
from bench.harness.rounds import ClusterOptions, Rounds, Store, in_turn
from bench.namenode.plan import CASES, SYSTEMS, ratios
from bench.read.driver import ReadDriver

__all__ = ["Driver", "Options", "measure"]

_SMALL = 20_000  # bytes of a small file
_BLOCK = 64 * MIB
_BUDGET = 512 * MIB
_LIMIT = 600.0  # seconds for one run
_FRESH = 1.2  # seconds after which the NameNode tells new counts: its metrics are taken once a second
_STREAMS = 8  # of rclone, one a DataNode


@dataclass(frozen=True, slots=True)
class Options(ClusterOptions):
    @property
    def files(self) -> int:
        return 50 if self.quick else 300

    @property
    def file_size(self) -> int:
        return 512 * MIB if self.quick else 2 * GIB


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each round. Raises BenchError where nothing can be measured."""
    notes: list[str] = []
    rclone = peers.try_rclone(notes, say)
    large = DataFile("namenode-large", options.file_size, _BLOCK)
    with running(options.name, say, keep=options.keep) as cluster:
        facts = {
            **cluster.facts(large.size, rclone),
            "block_mib": _BLOCK // MIB,
            "files": options.files,
            "small_kb": _SMALL // 1000,
        }
        done = Rounds.begin("namenode", options, facts, summary(ratios()), say, store)
        done.document.notes += notes
        cluster.set_rate(0)  # an instance that was running may still be capped
        cluster.write([large], say)
        cluster.set_rate(CAPPED)
        driver = Driver(cluster, options.files, large, rclone)
        runs = [
            (case, system)
            for case in options.cases or CASES
            for system in SYSTEMS
            if system != "rclone" or rclone is not None
        ]
        driver.prepare()
        for number in range(done.rounds):
            for case, system in in_turn(runs, number):
                done.take(case, system, number, partial(driver.run, case, system))
            done.keep()
    return done.document


@dataclass(frozen=True, slots=True)
class Driver:
    """The cluster, how many small files there are, the large one, and rclone's binary if it is measured."""

    cluster: Cluster
    files: int
    large: DataFile
    rclone: Path | None

    def prepare(self) -> None:
        """The small files that are read and listed, and no others."""
        self._empty("kept")
        self._program("create", f"{self.cluster.url}/bench/namenode/kept")

    def run(self, case: str, system: str) -> dict[str, float]:
        """The calls and the time of a case, after `prepare`. Raises BenchError where its program fails."""
        folder = "made" if case == "create" else "kept"
        if case == "create":
            self._empty(folder)
        cold()
        with self._mount(system, writable=case == "create") as mount:
            if case == "sequential":
                return self._counted(lambda: self._read(mount))
            place = mount.folder / "namenode" / folder if mount else f"{self.cluster.url}/bench/namenode/{folder}"
            return self._counted(lambda: self._program(case, str(place)))

    def _mount(self, system: str, *, writable: bool) -> AbstractContextManager[Mount | None]:
        """A fresh mount of this system; None for hdfs-native, which has none."""
        if system == "hdfs_native":
            return nullcontext()
        if system == "stripefs":
            return mounts.stripefs(self.cluster, "auto", _BUDGET, {}, *(["--rw"] if writable else []))
        assert self.rclone is not None
        return mounts.rclone(self.cluster, self.rclone, 0 if writable else _STREAMS, writable=writable)

    def _read(self, mount: Mount | None) -> Mapping[str, float]:
        """The large file from its start to its end."""
        driver = ReadDriver(self.cluster)
        if mount is None:
            return driver.client(self.large, "native")
        return driver.mounted(nullcontext(mount), self.large, "sequential")

    def _program(self, what: str, place: str) -> Mapping[str, float]:
        """`bench.namenode.program` on the small files of one directory."""
        words = [what, place, str(self.files), str(_SMALL)]
        return run_module("bench.namenode.program", words, "", _LIMIT, {})

    def _counted(self, work: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """The calls of `work`, by the NameNode's own count, and its time."""
        time.sleep(_FRESH)
        before = self.cluster.namenode_calls()
        found = work()
        time.sleep(_FRESH)
        calls = self.cluster.namenode_calls() - before
        if "throughput" not in found:
            return {"calls_per_file": calls / self.files, "time": found["time"]}
        return {
            "calls_per_gb": calls / (self.large.size / 1e9),
            "calls_per_s": calls / found["time"],
            "throughput": found["throughput"],
            "time": found["time"],
        }

    def _empty(self, folder: str) -> None:
        """A directory of this name with nothing in it."""
        from hdfs_native import Client

        path = f"/bench/namenode/{folder}"
        self.cluster.remove(path)
        Client(self.cluster.url).mkdirs(path, 0o755, True)
        if self.cluster.status(path) is None:
            raise BenchError(f"{path} could not be made")
