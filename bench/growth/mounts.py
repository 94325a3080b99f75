"""One operation on so many files of a mount, and readers of one.

Directories of small files are made by hdfs-native, each once. Every measurement has a fresh mount.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import BenchError, mounts
from bench.harness.cluster import Cluster
from bench.harness.data import MIB, DataFile
from bench.harness.environment import cold, drop_caches
from bench.harness.mounts import Mount, mounted
from bench.harness.processes import pss, tree
from bench.harness.programs import output

__all__ = ["READ", "FileCases"]

READ = 256 * MIB
"""Bytes of the file `data`, which all readers read together."""

_CREATORS = 32
_CONTENT = bytes(1000)
_BUDGET = 256 * MIB
_STEP = MIB
_BLOCK = 64 * MIB
_SETTLED = 1.0  # seconds after which a mount's memory is looked at


@dataclass(slots=True)
class FileCases:
    """cluster: of the files. work: a local folder. memory: one in memory, with a file `data` of READ bytes."""

    cluster: Cluster
    work: Path
    memory: Path
    _made: set[str] = field(default_factory=set)

    def measure(self, case: str, size: int) -> dict[str, float]:
        """The metrics of a case of this size. Raises BenchError."""
        measures: dict[str, Callable[[int], dict[str, float]]] = {
            "list_files": lambda size: self._listed(size, "ls", "-l"),
            "find_files": lambda size: self._listed(size, "find"),
            "extract_files": self._extracted,
            "sync_files": self._synced,
            "cached_names": self._names_kept,
            "open_files": self._files_opened,
            "readers": self._local_readers,
            "readers_hdfs": self._hdfs_readers,
        }
        return measures[case](size)

    @contextmanager
    def _mount(self, *words: str) -> Iterator[Mount]:
        with mounts.stripefs(self.cluster, "auto", _BUDGET, {}, *words) as mount:
            cold()
            yield mount

    def _listed(self, size: int, *command: str) -> dict[str, float]:
        folder = self._files(size)
        with self._mount() as mount:
            began = time.perf_counter()
            lines = output(*command, str(mount.folder / folder)).splitlines()
            seconds = time.perf_counter() - began
        if len(lines) != size + 1:  # and a line of the directory
            raise BenchError(f"{command[0]} shows {len(lines) - 1} of {size} files")
        return {"time": seconds}

    def _extracted(self, size: int) -> dict[str, float]:
        archive = self.work / f"{size}.tar"
        if not archive.exists():
            with tarfile.open(archive, "w") as file:
                file.add(self._local(size), "files")
        return self._copied(size, "tar", "xf", str(archive), "-C")

    def _synced(self, size: int) -> dict[str, float]:
        return self._copied(size, "rsync", "-a", str(self._local(size)))

    def _copied(self, size: int, *command: str) -> dict[str, float]:
        """Seconds of `command`, to which the name of a new directory is added; it makes `files` there."""
        self.cluster.remove("/bench/growth/copied")
        with self._mount("--rw") as mount:
            target = mount.folder / "growth/copied"
            target.mkdir(parents=True)
            began = time.perf_counter()
            output(*command, str(target))
            seconds = time.perf_counter() - began
            if len(os.listdir(target / "files")) != size:
                raise BenchError(f"{command[0]} has not made {size} files")
        return {"time": seconds}

    def _names_kept(self, size: int) -> dict[str, float]:
        folder = self._files(size)

        def listed(mount: Mount, _held: ExitStack) -> None:
            with os.scandir(mount.folder / folder) as entries:
                for entry in entries:
                    entry.stat()

        return self._memory(size, listed)

    def _files_opened(self, size: int) -> dict[str, float]:
        folder = self._files(size, _CONTENT)

        def open_all(mount: Mount, held: ExitStack) -> None:
            with os.scandir(mount.folder / folder) as entries:
                for entry in entries:
                    held.callback(os.close, os.open(entry.path, os.O_RDONLY))

        return self._memory(size, open_all)

    def _memory(self, size: int, work: Callable[[Mount, ExitStack], None]) -> dict[str, float]:
        """MiB of the mount's processes after `work` on `size` files, beyond those before, and bytes for each file. The
        stack is closed before the mount ends."""
        with self._mount() as mount, ExitStack() as held:
            time.sleep(_SETTLED)
            before = pss(tree(mount.pid))
            work(mount, held)
            time.sleep(_SETTLED)
            after = pss(tree(mount.pid))
        more = max(after - before, 1)
        return {"memory": more / MIB, "each": more / size}

    def _local_readers(self, count: int) -> dict[str, float]:
        command = [str(Path(sys.executable).with_name("stripefs")), "mount", "--foreground", self.memory.as_uri()]
        with mounted("stripefs", command, {}) as mount:
            drop_caches()
            return _read_together(mount.folder / "data", count)

    def _hdfs_readers(self, count: int) -> dict[str, float]:
        self.cluster.write([DataFile("growth/data", READ, _BLOCK)], lambda _: None)  # unless it is there
        with self._mount() as mount:
            return _read_together(mount.folder / "growth/data", count)

    def _files(self, count: int, content: bytes = b"") -> str:
        """The name, below a mount, of a directory of so many files on the cluster, made unless it is there."""
        from hdfs_native import Client, WriteOptions

        name = f"growth/{count}-{len(content)}"
        if name not in self._made:
            client, options = Client(self.cluster.url), WriteOptions(create_parent=True, overwrite=True)

            def create(number: int) -> None:
                writer = client.create(f"/bench/{name}/file-{number:06}", options)
                if content:
                    writer.write(content)
                writer.close()

            with ThreadPoolExecutor(_CREATORS) as pool:
                for _ in pool.map(create, range(count)):
                    pass
            self._made.add(name)
        return name

    def _local(self, count: int) -> Path:
        """A local directory of so many small files, called `files`, made unless it is there."""
        folder = self.work / str(count) / "files"
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"file-{number:06}").write_bytes(_CONTENT)
        return folder


def _read_together(path: Path, count: int) -> dict[str, float]:
    """The file at `path`, READ bytes long, read by so many threads, each its own part."""
    share, start = READ // count, threading.Barrier(count + 1)

    def read(number: int) -> None:
        with path.open("rb", buffering=0) as file:
            start.wait()
            file.seek(number * share)
            for _ in range(share // _STEP):
                if len(file.read(_STEP)) != _STEP:
                    raise BenchError("a reader came to the end of the file")

    with ThreadPoolExecutor(count) as pool:
        readers = [pool.submit(read, number) for number in range(count)]
        start.wait()
        began = time.perf_counter()
        for reader in readers:
            reader.result()
        seconds = time.perf_counter() - began
    return {"time": seconds, "throughput": READ / 1e6 / seconds}
