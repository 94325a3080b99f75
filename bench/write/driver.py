"""Measured writes: fresh process or mount, what was written before on disk, page caches dropped.

Every function answers {metric: value} in the units of `bench.harness.results`. Files lie in /bench/write, parts of raw
writers in /bench/raw; a run first removes what it wrote in the round before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import BenchError, mounts
from bench.harness.cluster import Cluster
from bench.harness.data import MIB, PAGE, DataFile
from bench.harness.environment import cold
from bench.harness.mounts import Mount
from bench.harness.processes import PeakMemory
from bench.harness.programs import run_module
from bench.read.driver import ReadDriver, timed
from bench.write.plan import BLOCK, Run
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE

__all__ = ["WriteDriver", "even_parts", "with_property"]

_PROGRAMS = "bench.write.programs"
_LIMIT = 600.0  # seconds for one run
_ALONE = 3  # writers at one DataNode that is measured alone: as many as readers there
_ALONE_SIZE = 128 * MIB  # at least: three seconds
_SEGMENT = 64 * MIB
_CREATORS = 64  # each file waits half a second for the NameNode to hear of its block
_BUDGET = 512 * MIB


@dataclass(slots=True)
class WriteDriver:
    """The cluster, and how much is written: `size` bytes a file, `listed` files a directory.

    `scratch` is a local folder for site files; `rclone` its binary.
    """

    cluster: Cluster
    size: int
    listed: int
    scratch: Path
    rclone: Path | None = None
    _ready: set[str] = field(default_factory=set)

    def prepare(self) -> None:
        """The directories that the runs write to."""
        from hdfs_native import Client

        for folder in ("/bench/write", "/bench/raw"):
            Client(self.cluster.url).mkdirs(folder, 0o755, True)

    def measure(self, run: Run, number: int) -> dict[str, float]:
        """Measure `run` in the round of this number. Raises BenchError."""
        kinds: dict[str, Callable[[], dict[str, float]]] = {
            "native": lambda: self.raw("native", run.streams, run.replication),
            "placed": lambda: self.raw("placed", run.streams, run.replication),
            "through": lambda: self.through(run.layout, run.replication),
            "rclone": self.through_rclone,
            "write_alone": lambda: self.write_alone(number),
            "read_alone": lambda: self.read_alone(number),
            "read_back": lambda: self.read_back(run.layout, run.window),
            "listing": lambda: self.listing(run.layout),
        }
        return kinds[run.kind]()

    def raw(self, kind: str, streams: int, replication: int, size: int = 0) -> dict[str, float]:
        """`streams` writers of `bench.write.programs` at once, each with an equal part; placed ones spread evenly."""
        nodes = [node.http for node in self.cluster.datanodes]
        files = [
            (f"/bench/raw/{kind}{streams}-{n}", part, nodes[n % len(nodes)])
            for n, part in enumerate(even_parts(size or self.size, streams))
        ]
        return self._raw(kind, files, replication, 0 if streams == 1 else _SEGMENT)

    def write_alone(self, number: int) -> dict[str, float]:
        """The write rate of one DataNode alone: an equal share of the file, three writers; another each round."""
        node = self.cluster.datanodes[number % len(self.cluster.datanodes)]
        parts = even_parts(max(_ALONE_SIZE, self.size // len(self.cluster.datanodes)), _ALONE)
        files = [(f"/bench/raw/alone-{n}", part, node.http) for n, part in enumerate(parts)]
        return {"throughput": self._raw("placed", files, 1, 0)["throughput"]}

    def read_alone(self, number: int) -> dict[str, float]:
        """The read rate of one DataNode alone: a file that lies there whole, three threads; another each round."""
        node = self.cluster.datanodes[number % len(self.cluster.datanodes)]
        path = f"/bench/raw/whole-{node.name}"
        size = max(_ALONE_SIZE, self.size // len(self.cluster.datanodes))
        if path not in self._ready:
            self._raw("placed", [(path, size, node.http)], 1, 0)
            self._ready.add(path)
        file = DataFile(path.removeprefix("/bench/"), size, BLOCK)
        return {"throughput": ReadDriver(self.cluster).client(file, "native", _ALONE)["throughput"]}

    def through(self, layout: str, replication: int) -> dict[str, float]:
        """A program that saves a file through a mount of stripefs; what the mount wrote is checked for its length."""
        path = f"/bench/write/{layout}-{replication}"
        self.cluster.remove(path)
        if layout == "striped":
            self.cluster.remove("/bench/.stripefs")  # parts of the file just removed, else kept for gc
        words = ["--rw", "--layout", layout]
        mounting = mounts.stripefs(self.cluster, "auto", _BUDGET, {}, *words, conf=self._conf(replication))
        values = self._save(mounting, path)
        status = self.cluster.status(path)
        wanted = (self.size, replication)
        if status is None or (layout != "striped" and (status["length"], status["replication"]) != wanted):
            raise BenchError(f"{path} is not there as it should be: {status}")
        return values

    def through_rclone(self) -> dict[str, float]:
        assert self.rclone is not None
        return self._save(mounts.rclone(self.cluster, self.rclone, 0, writable=True), "/bench/write/rclone")

    def read_back(self, layout: str, window: int) -> dict[str, float]:
        """Sequential reading of what `through` wrote at last, with `window` bytes of memory for the mount."""
        file = DataFile(f"write/{layout}-1", self.size, BLOCK)
        mounting = mounts.stripefs(self.cluster, "auto", window, {})
        return ReadDriver(self.cluster).mounted(mounting, file, "sequential", window)

    def listing(self, layout: str) -> dict[str, float]:
        """Names and sizes of a directory of many files, on a fresh mount and again."""
        length = self._many(layout)
        with mounts.stripefs(self.cluster, "auto", _BUDGET, {}) as mount:
            cold()
            arguments = ["list", str(mount.folder / f"ls-{layout}"), str(self.listed), str(length)]
            answer = run_module(_PROGRAMS, arguments, "", _LIMIT, {}, mount.pid)
        return {"time": answer["cold"], "again_time": answer["again"]}

    def _save(self, mounting: AbstractContextManager[Mount], path: str) -> dict[str, float]:
        with mounting as mount:
            cold()
            words = ["save", str(mount.folder / path.removeprefix("/bench/")), str(self.size)]
            with PeakMemory(mount.pid) as memory:
                answer, values = timed(
                    self.cluster, lambda: run_module(_PROGRAMS, words, "", _LIMIT, {}, mount.pid), mount.pid
                )
        values |= {"sync_time": answer["sync"], "close_time": answer["close"]}
        values["close_share"] = answer["close"] / answer["seconds"]
        values["peak_pss"] = memory.peak / MIB
        return values

    def _raw(
        self, kind: str, files: Sequence[tuple[str, int, str]], replication: int, segment: int
    ) -> dict[str, float]:
        job = {
            "kind": kind,
            "url": self.cluster.url,
            "block_size": BLOCK,
            "replication": replication,
            "segment": segment,
            "files": files,
        }
        cold()
        return timed(self.cluster, lambda: run_module(_PROGRAMS, ["raw"], json.dumps(job), _LIMIT, {}))[1]

    def _conf(self, replication: int) -> str:
        """A folder of site files with this replication."""
        if replication == 1:
            return self.cluster.conf
        folder = self.scratch / f"conf-{replication}"
        if not folder.exists():
            folder.mkdir()
            for site in Path(self.cluster.conf).iterdir():
                (folder / site.name).write_text(with_property(site.read_text(), "dfs.replication", str(replication)))
        return str(folder)

    def _many(self, layout: str) -> int:
        """Make the directory of many files unless it is there; the length that each should show.

        A manifest names the parts of a file by their place in the pool, so copies of one are as many striped files.
        """
        if layout == "striped":
            data, block, length = self._manifest(), MANIFEST_BLOCK_SIZE, self.size
        else:
            data, block, length = bytes(1000), BLOCK, 1000
        folder = f"/bench/ls-{layout}"
        if folder not in self._ready:
            self._create([f"{folder}/checkpoint-{n:06}" for n in range(self.listed)], data, block)
            self._ready.add(folder)
        return length

    def manifests(self) -> int:
        """Bytes of all manifests that a listing of striped files reads."""
        return len(self._manifest()) * self.listed

    def _manifest(self) -> bytes:
        path = "/bench/write/striped-1"
        if self.cluster.status(path) is None:
            self.through("striped", 1)
        return self.cluster.contents(path)

    def _create(self, paths: Sequence[str], data: bytes, block_size: int) -> None:
        from hdfs_native import Client, WriteOptions

        options = WriteOptions(block_size=block_size, replication=1, create_parent=True, overwrite=True)
        client = Client(self.cluster.url)

        def create(path: str) -> None:
            writer = client.create(path, options)
            writer.write(data)
            writer.close()

        with ThreadPoolExecutor(_CREATORS) as pool:
            for _ in pool.map(create, paths):
                pass


def even_parts(size: int, count: int) -> list[int]:
    """`size` bytes in `count` parts of whole pages, as equal as that allows; the last takes what is left."""
    part = size // count // PAGE * PAGE
    return [part] * (count - 1) + [size - part * (count - 1)]


def with_property(site: str, name: str, value: str) -> str:
    """A Hadoop site file with this value of a property that stands in it; the same text where it does not."""
    return re.sub(rf"(<name>{re.escape(name)}</name>\s*<value>)[^<]*(</value>)", rf"\g<1>{value}\g<2>", site)
