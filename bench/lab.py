"""One measured run of one system: fresh process or mount, caches dropped, from opening the file to its last byte.

Every function answers {metric: value} in the units of `bench.results`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from bench.cluster import ROOT, BenchError, Cluster, DataNode, drop_caches
from bench.data import CHUNK, MIB, DataFile
from bench.model import Extent
from bench.mounts import Mount
from bench.processes import PeakMemory, cpu_seconds, tree

__all__ = ["Lab", "cut", "kill_server", "rates", "run_module"]

_STREAM_STEP = 4 * MIB
_FREEZE_AT = 0.25  # of the file
_LIMIT = 600.0  # seconds for one run


@dataclass(slots=True)
class Lab:
    """The cluster and what has been found out about its files. `environment` is added to that of raw clients."""

    cluster: Cluster
    environment: Mapping[str, str] = field(default_factory=dict)
    _placement: dict[str, list[Extent]] = field(default_factory=dict)

    def extents(self, file: DataFile) -> list[Extent]:
        if file.path not in self._placement:
            self._placement[file.path] = self.cluster.locate(file.path)
        return self._placement[file.path]

    def client(self, file: DataFile, kind: str, threads: int = 1, extents: Sequence[Extent] = ()) -> dict[str, float]:
        """A raw client of `bench.clients` on the whole file, or on `extents` of it."""
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
        before = self.cluster.datanode_cpu()
        answer = run_module("bench.clients", [], json.dumps(job), _LIMIT, self.environment)
        return rates(answer, answer["cpu"], self.cluster.datanode_cpu() - before)

    def one_datanode(self, file: DataFile, number: int) -> dict[str, float]:
        """What one DataNode alone gives: its blocks of the file, read by three threads; another one each round."""
        holders = sorted({extent.hosts[0] for extent in self.extents(file)})
        chosen = holders[number % len(holders)]
        own = [extent for extent in self.extents(file) if extent.hosts[0] == chosen]
        return {"throughput": self.client(file, "native", 3, own)["throughput"]}

    def mounted(
        self, mounting: AbstractContextManager[Mount], file: DataFile, pattern: str, budget: int = 0
    ) -> dict[str, float]:
        """A pattern of `bench.patterns` on a fresh mount; with a `budget` in bytes also how far memory went past it."""
        with mounting as mount:
            drop_caches()
            nodes, own = self.cluster.datanode_cpu(), cpu_seconds(mount.pid)
            with PeakMemory(mount.pid) as memory:
                answer = self._read(mount, file, pattern, _LIMIT)
            cpu = cpu_seconds(mount.pid) - own + answer["cpu"]
            values = rates(answer, cpu, self.cluster.datanode_cpu() - nodes)
        values["peak_pss"] = memory.peak / MIB
        if budget:
            values["over_budget"] = (memory.peak - budget) / MIB
        return values

    def program(self, file: DataFile, pattern: str, budget: int) -> dict[str, float]:
        """A pattern of `bench.patterns` by `stripefs.open` in its own process, with a `budget` in bytes."""
        drop_caches()
        before = self.cluster.datanode_cpu()
        own = {"STRIPEFS_MEMORY": str(budget), "STRIPEFS_HDFS_USER": "root", "STRIPEFS_HADOOP_CONF": self.cluster.conf}
        answer = run_module(
            "bench.patterns", [pattern, f"{self.cluster.url}{file.path}"], "", _LIMIT, own | {**self.environment}
        )
        _all_of(answer, file, pattern)
        return rates(answer, answer["cpu"], self.cluster.datanode_cpu() - before)

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
        answer = run_module("bench.patterns", [pattern, str(mount.folder / file.name)], "", limit, {}, mount.pid)
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


def rates(answer: Mapping[str, float], cpu: float, datanode_cpu: float) -> dict[str, float]:
    """Metrics of a run that moved answer["bytes"] in answer["seconds"]; CPU in seconds."""
    gigabytes = answer["bytes"] / 1e9
    return {
        "throughput": answer["bytes"] / 1e6 / answer["seconds"],
        "time": answer["seconds"],
        "cpu_per_gb": cpu / gigabytes,
        "datanode_cpu_per_gb": datanode_cpu / gigabytes,
    }


def kill_server(mount: int) -> None:
    """Kill the processes that serve a mount, 0 for none: a reader that waits for one of them cannot die before."""
    for pid in tree(mount) if mount else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_module(
    module: str, arguments: Sequence[str], text: str, limit: float, environment: Mapping[str, str], mount: int = 0
) -> dict[str, float]:
    """Run `python -m module` on `text` and return the JSON it prints.

    Raises BenchError where it fails or takes more than `limit` seconds. Then, and when interrupted, it is killed, and
    before it the processes that serve its `mount`.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(text, timeout=limit)
    except BaseException as error:
        kill_server(mount)
        process.kill()
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise BenchError(f"had not ended after {limit:.0f} s and was given up") from error
        raise
    if process.returncode:
        raise BenchError(f"{module} failed: {(errors.strip().splitlines() or ['it said nothing'])[-1]}")
    answer: dict[str, float] = json.loads(output)
    return answer
