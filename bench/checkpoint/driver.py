"""Measured loads and saves of checkpoints: fresh process and mount, what was written before on disk, caches dropped.

Every function answers {metric: value} in the units of `bench.harness.results`. Checkpoints lie in /bench/checkpoint,
what is saved in /bench/save; caches and local copies in `scratch`, which should be on the same disk as users' caches.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.checkpoint.plan import RANKS, Run, copies, name_of
from bench.harness import ROOT, BenchError, mounts
from bench.harness.cluster import Cluster
from bench.harness.data import CHUNK, DataFile
from bench.harness.environment import cold
from bench.harness.mounts import Mount
from bench.harness.peers import TORCH
from bench.harness.processes import kill_tree
from bench.harness.programs import output
from bench.read.driver import ReadDriver, timed
from bench.write.driver import WriteDriver
from stripefs.fuse.control import query
from stripefs.settings import default_budget

__all__ = ["CheckpointDriver", "Runner", "check_cached"]

_FOLDER = "checkpoint"
_SAVED = "save"
_SETTLES_WITHIN = 120.0  # seconds for what waits for the cache's disk
_STREAMS = 32  # of rclone, which did best in `bench read`
_MOST_FETCHED = 0.05  # of a file that is said to be in a cache
_FORMATS = {"model.safetensors": "safetensors", "model.pt": "torch", "dcp": "dcp"}
_STARTS_WITHIN = 120.0
_STEP_LIMIT = 600.0  # seconds for one step of a job

_ENVIRONMENT = {
    "PYTHONPATH": str(TORCH),
    "OPENBLAS_NUM_THREADS": "1",  # it starts its threads when it is imported, and they do not survive a fork
    "TORCHINDUCTOR_DISABLE": "1",
}


@dataclass(slots=True)
class CheckpointDriver:
    """The cluster, and checkpoints of `size` bytes each. `rclone` is its binary."""

    cluster: Cluster
    size: int
    scratch: Path
    runner: Runner
    rclone: Path | None = None

    @property
    def file(self) -> DataFile:
        """The safetensors file, which every reader of `bench` can check."""
        return DataFile(f"{_FOLDER}/model.safetensors", self.size, CHUNK)

    # -- files before the first run --------------------------------------------------------------------------------

    def prepare(self, chosen: list[Run]) -> None:
        """Save what the runs load, by the same programs that are measured."""
        wanted = copies(chosen)
        self._directory(_FOLDER)
        with self._stripefs("--rw") as mount:
            for name in sorted(wanted["stored"]):
                self._save_to(mount.folder / _FOLDER / name, name, mount.pid)
        status = self.cluster.status(self.file.path)
        if status is None or status["length"] != self.size:
            raise BenchError(f"{self.file.path} has not {self.size} bytes: safetensors pads its header in another way")
        (self.scratch / "local").mkdir()
        for name in sorted(wanted["local"]):
            self._save_to(self.scratch / "local" / name, name, 0)
        if wanted["cached"]:
            with self._stripefs(*self._with_cache(self.scratch / "filled")) as mount:
                for name in sorted(wanted["cached"]):
                    _warm(mount.folder / _FOLDER / name)

    def _save_to(self, path: Path, name: str, server: int) -> None:
        self.runner.prepare(self._job("save", _FORMATS[name], str(path)), server)
        self.runner.go(server)

    # -- runs ------------------------------------------------------------------------------------------------------

    def measure(self, run: Run) -> dict[str, float]:
        """Measure `run`. Raises BenchError."""
        if run.kind == "sequential":
            return self._sequential(run)
        if run.kind == "stream":
            os.sync()
            return ReadDriver(self.cluster).client(self.file, "single_stream")
        if run.kind == "save_stream":
            return WriteDriver(self.cluster, self.size, 0, self.scratch).raw("native", 1, 1)
        if run.kind == "save":
            return self._save(run)
        if run.kind in ("warm", "copy"):
            return self._brought(run)
        return self._load(run)

    def _sequential(self, run: Run) -> dict[str, float]:
        """As `bench read` does it, in the program or through a mount; both without a cache."""
        os.sync()
        driver = ReadDriver(self.cluster)
        if run.way == "api":
            return driver.program(self.file, "sequential", default_budget())
        return driver.mounted(self._stripefs(), self.file, "sequential")

    def _save(self, run: Run) -> dict[str, float]:
        with ExitStack() as stack:
            self._directory(_SAVED)
            server, folder = 0, f"{_SAVED}/"
            if run.way == "mount":
                mount = stack.enter_context(self._stripefs("--rw"))
                server, folder = mount.pid, f"{mount.folder}/{_SAVED}/"
            elif run.way == "local":
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self.scratch)) + "/"
            self.runner.prepare(self._job("save", run.format, folder + name_of(run), self._source(run)), server)
            values = self._timed(server)
        return {name: values[name] for name in ("time", "throughput", "cpu_per_gb", "datanode_cpu_per_gb")}

    def _brought(self, run: Run) -> dict[str, float]:
        """A local file into an empty cache on its disk by `stripefs warm`, or into a copy there, all on disk."""
        file = self.scratch / "local" / name_of(run)
        with tempfile.TemporaryDirectory(prefix="brought-", dir=self.scratch) as folder:
            cold()
            if run.kind == "warm":
                seconds = _warm(file, *self._with_cache(Path(folder)))
            else:
                begin = time.monotonic()
                shutil.copyfile(file, Path(folder, "copy"))
                descriptor = os.open(Path(folder, "copy"), os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
                seconds = time.monotonic() - begin
        return {"time": seconds, "throughput": self.size / 1e6 / seconds}

    def _load(self, run: Run) -> dict[str, float]:
        with ExitStack() as stack:
            cache = stack.enter_context(self._cache(run)) if run.cache else None
            path, server = f"{_FOLDER}/{name_of(run)}", 0
            more: dict[str, float] = {}
            if run.way == "local":
                path = str(self.scratch / "local" / name_of(run))
            elif run.way in ("mount", "rclone"):
                mount = stack.enter_context(self._mount(run, cache))
                path, server = str(mount.folder / path), mount.pid
                if run.cache == "warm":
                    more["warm_time"] = _warm(Path(path))
            act = "share" if run.kind == "share" else "load"
            self.runner.prepare(self._job(act, run.format, path, self._source(run, cache)), server)
            values = self._timed(server)
            if run.cache in ("filled", "warm"):
                check_cached(values["fetched_share"])
            if run.cache == "empty" and run.way == "mount":
                more["kept"] = self._settled(mount)["filled_bytes"] / self.size
        return values | more

    def _timed(self, server: int) -> dict[str, float]:
        """Have the runner go on with what it has prepared; the mount is served by the processes below `server`."""
        cold()
        sent = self.cluster.payload_sent()
        _, found = timed(self.cluster, lambda: self.runner.go(server), server)
        sent = self.cluster.payload_sent() - sent
        return {"time": found["time"], **found, "fetched": sent / 1e6, "fetched_share": sent / self.size}

    # -- mounts, caches, jobs --------------------------------------------------------------------------------------

    def _mount(self, run: Run, cache: Path | None) -> AbstractContextManager[Mount]:
        if run.way == "rclone":
            assert self.rclone is not None
            return mounts.rclone(self.cluster, self.rclone, _STREAMS, cache=cache, limit=_limit(run))
        return self._stripefs(*(self._with_cache(cache) if cache else []), limit=_limit(run))

    def _stripefs(self, *words: str, limit: int = 0) -> AbstractContextManager[Mount]:
        return mounts.stripefs(self.cluster, "auto", default_budget(), {}, *words, limit=limit)

    def _with_cache(self, folder: Path) -> list[str]:
        return [word for name, value in self._cache_options(folder).items() for word in (f"--{name}", value)]

    def _cache_options(self, folder: Path) -> dict[str, str]:
        """Room for all checkpoints, however large the disk is."""
        return {"cache": str(folder), "cache-size": str(4 * self.size)}

    @contextmanager
    def _cache(self, run: Run) -> Iterator[Path]:
        """The folder as the run is to find it."""
        if run.cache == "filled":
            yield self.scratch / "filled"
            return
        folder = Path(tempfile.mkdtemp(prefix="cache-", dir=self.scratch))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def _source(self, run: Run, cache: Path | None = None) -> dict[str, Any]:
        """The source from which a program without a mount has the checkpoints; {} where it is given a path."""
        if run.way not in ("api", "fsspec"):
            return {}
        options = {"hdfs-user": "root", "hadoop-conf": self.cluster.conf}
        options |= self._cache_options(cache) if cache else {}
        named = {name.replace("-", "_"): value for name, value in options.items()}
        return {"root": f"{self.cluster.url}/bench", "options": named}

    def _job(self, act: str, format_: str, path: str, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
        ranks = RANKS if act == "share" else 1
        job = {"act": act, "format": format_, "size": self.size, "path": path, "ranks": ranks}
        return {**job, "root": "", "options": {}, **(source or {})}

    def _settled(self, mount: Mount) -> dict[str, int]:
        """The cache's status from the mount, once nothing waits for the disk."""
        deadline = time.monotonic() + _SETTLES_WITHIN
        while True:
            told: dict[str, int] = query(str(mount.folder), "status")["cache"]
            if not told["waiting_bytes"] or time.monotonic() > deadline:
                return told
            time.sleep(0.1)

    def _directory(self, name: str) -> None:
        """An empty one below /bench."""
        from hdfs_native import Client

        self.cluster.remove(f"/bench/{name}")
        Client(self.cluster.url).mkdirs(f"/bench/{name}", 0o755, True)


def _limit(run: Run) -> int:
    """Bytes of memory that the mount of a run is limited to, 0 for no limit: the usual budget where it is bounded."""
    return default_budget() if run.bounded else 0


def check_cached(share: float) -> None:
    """Raises BenchError where a load from a cache fetched this share of its file: then it measured no cache."""
    if share > _MOST_FETCHED:
        raise BenchError(f"it fetched {share:.0%} of a file that should be in its cache")


def _warm(path: Path, *words: str) -> float:
    """Seconds of `stripefs warm --wait` of a path, inside a mount or with a cache that `words` name. Raises BenchError
    unless all of it is here then."""
    begin = time.monotonic()
    told = json.loads(output(Path(sys.executable).with_name("stripefs"), "warm", "--json", *words, path))
    seconds = time.monotonic() - begin
    if not all(one["whole"] for one in told["paths"]):
        raise BenchError(f"stripefs warm did not bring all of {path.name}: {told}")
    return seconds


class Runner:
    """Starts `bench.checkpoint.program`, which has torch and the loaders, and asks it to save and load.

    It is started once, and anew after a run that was given up: importing torch takes seconds from a cold disk. A
    context that ends the process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """environment: added to that of the process."""
        if not TORCH.exists():
            raise BenchError("torch is not set up: run ./scripts/bench checkpoint, which does it")
        self._environment = {**os.environ, **_ENVIRONMENT, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def prepare(self, job: Mapping[str, Any], mount: int = 0) -> None:
        """Have `job` prepared, up to what is measured. mount: the pid that serves the mount it uses. Raises BenchError.

        When this raises, and when it is interrupted, nothing of the job runs any more.
        """
        if self._process is None:
            self._start()
        self._ask(json.dumps(job), mount)

    def go(self, mount: int = 0) -> dict[str, float]:
        """Run what was prepared: its figures. Raises BenchError."""
        return self._ask("go", mount)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.checkpoint.program"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that it can be killed with all that it has forked
        )
        self._listen(0, _STARTS_WITHIN)

    def _ask(self, line: str, mount: int) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._listen(mount, _STEP_LIMIT)
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer

    def _listen(self, mount: int, limit: float) -> dict[str, Any]:
        """The next line of the process; where none comes within `limit` seconds it is killed."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            if not select.select([self._process.stdout], [], [], limit)[0]:
                raise BenchError(f"had not ended after {limit:.0f} s and was given up")
            line = self._process.stdout.readline()
            if not line:
                raise BenchError("the loading process ended; what it said last stands above")
        except BaseException:
            kill_tree(mount)
            self._end()
            raise
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
