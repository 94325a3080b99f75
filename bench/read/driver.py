"""Measured reads: fresh process or mount, caches dropped, from opening the file to its last byte.

Every function answers {metric: value} in the units of `bench.harness.results`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from bench.harness import BenchError, Say
from bench.harness.cluster import Cluster, DataNode
from bench.harness.data import CHUNK, MIB, DataFile, Extent
from bench.harness.environment import drop_caches
from bench.harness.mounts import Mount
from bench.harness.processes import PeakMemory, cpu_seconds
from bench.harness.programs import run_module

__all__ = ["ReadDriver", "cut", "timed", "warm_reads"]

_STREAM_STEP = 4 * MIB
_FREEZE_AT = 0.25  # of the file
_LIMIT = 600.0  # seconds for one run
_STEADY = 0.03
_WARM_ROUNDS = 8  # of a machine that others use, two equal rounds may never come
_WARM_THREADS = 32


@dataclass(slots=True)
class ReadDriver:
    """The cluster and what has been found out about its files. `environment` is added to that of raw clients."""

    cluster: Cluster
    environment: Mapping[str, str] = field(default_factory=dict)
    _placement: dict[str, list[Extent]] = field(default_factory=dict)

    def extents(self, file: DataFile) -> list[Extent]:
        if file.path not in self._placement:
            self._placement[file.path] = self.cluster.locate(file.path)
        return self._placement[file.path]

    def client(self, file: DataFile, kind: str, threads: int = 1, extents: Sequence[Extent] = ()) -> dict[str, float]:
        """A raw client of `bench.read.clients` on the whole file, or on `extents` of it."""
        ranges = cut(extents or self.extents(file))
        web = {node.transfer: node.http for node in self.cluster.datanodes}
        job = {
            "kind": kind,
            "url": self.cluster.url,
            "path": file.path,
            "step": _STREAM_STEP,
            "threads": threads,
            "ranges": [(piece.offset, piece.length) for piece in ranges],
            "web": [web[piece.hosts[0]] for piece in ranges],
        }
        drop_caches()
        text = json.dumps(job)
        return timed(self.cluster, lambda: run_module("bench.read.clients", [], text, _LIMIT, self.environment))[1]

    def one_datanode(self, file: DataFile, number: int) -> dict[str, float]:
        """The rate of one DataNode alone: its blocks of the file, read by three threads; another one each round."""
        holders = sorted({extent.hosts[0] for extent in self.extents(file)})
        chosen = holders[number % len(holders)]
        own = [extent for extent in self.extents(file) if extent.hosts[0] == chosen]
        return {"throughput": self.client(file, "native", 3, own)["throughput"]}

    def mounted(
        self, mounting: AbstractContextManager[Mount], file: DataFile, pattern: str, budget: int = 0
    ) -> dict[str, float]:
        """A pattern of `bench.read.patterns` on a fresh mount; with a `budget` also how far memory went past it."""
        with mounting as mount:
            drop_caches()
            with PeakMemory(mount.pid) as memory:
                _, values = timed(self.cluster, lambda: self._read(mount, file, pattern, _LIMIT), mount.pid)
        values["peak_pss"] = memory.peak / MIB
        if budget:
            values["over_budget"] = (memory.peak - budget) / MIB
        return values

    def program(self, file: DataFile, pattern: str, budget: int) -> dict[str, float]:
        """A pattern of `bench.read.patterns` by `stripefs.open` in its own process, with a `budget` in bytes."""
        drop_caches()
        own = {"STRIPEFS_MEMORY": str(budget), "STRIPEFS_HDFS_USER": "root", "STRIPEFS_HADOOP_CONF": self.cluster.conf}
        words, variables = [pattern, f"{self.cluster.url}{file.path}"], own | {**self.environment}
        answer, values = timed(self.cluster, lambda: run_module("bench.read.patterns", words, "", _LIMIT, variables))
        _all_of(answer, file, pattern)
        return values

    def frozen(
        self, mounting: AbstractContextManager[Mount], file: DataFile, number: int, limit: float
    ) -> dict[str, float]:
        """Sequential reading while one DataNode freezes after a quarter of the file. Raises BenchError past `limit`."""
        node = self.cluster.datanodes[number % len(self.cluster.datanodes)]
        with mounting as mount:
            drop_caches()
            freezer = _Freezer(self.cluster, node, int(file.size * _FREEZE_AT))
            with freezer:
                answer = self._read(mount, file, "sequential", limit)
            if not freezer.frozen:
                raise BenchError(f"{node.name} froze only after {file.path} had been read: use a larger file")
        return {"time": answer["seconds"]}

    def _read(self, mount: Mount, file: DataFile, pattern: str, limit: float) -> dict[str, float]:
        answer = run_module("bench.read.patterns", [pattern, str(mount.folder / file.name)], "", limit, {}, mount.pid)
        _all_of(answer, file, pattern)
        return answer


def _all_of(answer: Mapping[str, float], file: DataFile, pattern: str) -> None:
    if answer["bytes"] < 0.95 * file.size:
        raise BenchError(f"{pattern} read {answer['bytes']:.0f} of {file.size} bytes")


def cut(extents: Sequence[Extent], size: int = CHUNK) -> list[Extent]:
    """Ranges of at most `size` bytes, none across a block: what parallel readers ask for."""
    return [
        Extent(extent.offset + begin, min(size, extent.length - begin), extent.hosts)
        for extent in extents
        for begin in range(0, extent.length, size)
    ]


class _Freezer:
    """Pauses a DataNode once all DataNodes together have sent `after` bytes, and lets it go on at the end of the block.

    Counting on the wire leaves the reader alone.
    """

    def __init__(self, cluster: Cluster, node: DataNode, after: int) -> None:
        self.frozen = False
        self._cluster = cluster
        self._node = node
        self._after = after
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="freezer", daemon=True)
        self._begin = cluster.bytes_sent()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.frozen:
            self._cluster.resume(self._node)

    def _watch(self) -> None:
        while self._cluster.bytes_sent() - self._begin < self._after:
            if self._stop.wait(0.02):
                return
        self._cluster.pause(self._node)
        self.frozen = True


def timed(
    cluster: Cluster, work: Callable[[], dict[str, float]], server: int = 0
) -> tuple[dict[str, float], dict[str, float]]:
    """The answer of `work`, and its metrics: it moves answer["bytes"] in answer["seconds"] and uses answer["cpu"].

    server: the root of the processes that serve it, whose processor time counts as well; 0 for none.
    """
    nodes, own = cluster.datanode_cpu(), cpu_seconds(server) if server else 0.0
    answer = work()
    cpu = answer["cpu"] + (cpu_seconds(server) - own if server else 0.0)
    gigabytes = answer["bytes"] / 1e9
    return answer, {
        "throughput": answer["bytes"] / 1e6 / answer["seconds"],
        "time": answer["seconds"],
        "cpu_per_gb": cpu / gigabytes,
        "datanode_cpu_per_gb": (cluster.datanode_cpu() - nodes) / gigabytes,
    }


def warm_reads(driver: ReadDriver, files: Sequence[DataFile], say: Say) -> list[str]:
    """Read `files` over both of the DataNodes' data paths, each until two rounds in a row are about equally fast.

    Before any cap is set: behind one, a DataNode that still compiles its code is as fast as one that has. Answers what
    did not become steady, a sentence each.
    """
    notes = []
    for kind in ("native", "webhdfs"):
        last = 0.0
        for _ in range(_WARM_ROUNDS):
            seconds = sum(driver.client(file, kind, _WARM_THREADS)["time"] for file in files)
            rate = sum(file.size for file in files) / 1e6 / seconds
            say(f"warm-up of {kind}: {rate:.0f} MB/s")
            if abs(rate - last) < _STEADY * rate:
                break
            last = rate
        else:
            notes.append(f"{kind}: no two of {_WARM_ROUNDS} warm-up rounds came within {_STEADY:.0%}")
    return notes
