"""imagefs as it is measured: a daemon of its own for each run, with nothing local when it is to be cold."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.image.container import Start, started
from bench.image.local import remove_mounts
from bench.image.tools import BenchError, cold, output, remove_tree
from bench.processes import PeakMemory, pss, tree
from imagefs.images import Images
from stripefs.store.local import LocalStore

__all__ = ["Built", "Host", "Published", "build", "host", "published", "record"]

_PROGRAM = Path(sys.executable).with_name("imagefs")
_LOCAL_WITHIN = 120.0
_STORED_WITHIN = 30.0
_ENDS_WITHIN = 20.0
_HOT = "hot"


@dataclass(frozen=True, slots=True)
class Built:
    """What a build took, and the bytes that it stored: blocks that the store did not have, the hot device's apart, and
    metadata."""

    seconds: float
    blocks: int
    hot: int
    metadata: int


@dataclass(frozen=True, slots=True)
class Published:
    """What a start with a trace fetches ahead, compressed, in bytes: documents, hot device."""

    metadata: int
    indexes: int
    hot: int

    @property
    def ahead(self) -> int:
        return self.metadata + self.indexes + self.hot


class Host:
    """A machine that has nothing of any image yet: cache, runtime folder and daemon are this one's alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cache = folder / "cache"
        self.environment = {"IMAGEFS_CACHE": str(self._cache), "IMAGEFS_RUNTIME": str(folder / "run")}

    @contextmanager
    def start(self, image: str, *options: str) -> Iterator[Start]:
        """`imagefs run` until the container is ready. Raises BenchError."""
        with started([str(_PROGRAM), "run", "--oci-runtime", "runc", *options, image], self.environment) as start:
            yield start

    def command(self, *arguments: str) -> str:
        return output(_PROGRAM, *arguments, env=os.environ | self.environment)

    def status(self) -> dict[str, Any]:
        """As `imagefs status --json` tells it."""
        found: dict[str, Any] = json.loads(self.command("status", "--json"))
        return found

    def ready(self) -> dict[str, Any]:
        """Say that the container that runs has started; how good what was fetched ahead was."""
        (image,) = self.status()["images"]
        figures: dict[str, Any] = json.loads(self.command("ready", "--json", image["id"]))
        return figures

    def fetched(self) -> int:
        """Bytes of blocks that the cache holds: the disk space of its sparse files."""
        return sum(file.stat().st_blocks * 512 for file in (self._cache / "blocks").glob("*.data"))

    def await_local(self) -> None:
        """Until the image that is in use is whole in the cache, checked and marked.

        Raises BenchError where it does not come to that.
        """
        deadline = time.monotonic() + _LOCAL_WITHIN
        while not all(device["complete"] for image in self.status()["images"] for device in image["devices"]):
            if time.monotonic() > deadline:
                raise BenchError(f"the image was not local after {_LOCAL_WITHIN:g} s")
            time.sleep(0.5)

    def memory(self) -> int:
        """Bytes that supervisor and worker hold."""
        return pss(tree(self.status()["supervisor_pid"]))

    def peak_memory(self) -> PeakMemory:
        """Watches them while a `with` block runs."""
        return PeakMemory(self.status()["supervisor_pid"], period=0.1)

    def start_daemon(self) -> None:
        """Until it answers. Raises BenchError."""
        with (self._folder / "daemon.log").open("wb") as log:
            process = subprocess.Popen(
                [_PROGRAM, "daemon"],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _STORED_WITHIN
        while not (self._folder / "run/imagefs.json").exists():  # which it writes when it answers
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"imagefs daemon did not start: see {self._folder / 'daemon.log'}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the daemon, politely first. Its processes are known by their environment, which names our folder."""
        if (self._folder / "run/imagefs.sock").exists():
            with contextlib.suppress(BenchError):
                self.command("daemon", "--stop")
        deadline = time.monotonic() + _ENDS_WITHIN
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> list[int]:
        wanted = f"IMAGEFS_RUNTIME={self._folder / 'run'}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


@contextmanager
def host(work: Path, *, daemon: bool = True) -> Iterator[Host]:
    """A fresh one on which the daemon is up, or not, and the page caches of this machine empty.

    Nothing of it stays but, where the block fails, the daemon's log: WORK/imagefs.log.
    """
    folder = work / "host"
    remove_tree(folder)
    (folder / "run").mkdir(parents=True)
    (folder / "cache").mkdir()
    made = Host(folder)
    try:
        if daemon:
            made.start_daemon()
        cold()
        yield made
    except BenchError:
        for log in (*folder.glob("run/*.log"), *folder.glob("*.log")):
            shutil.copy(log, work / "imagefs.log")
        raise
    finally:
        made.stop()
        remove_mounts(work)
        remove_tree(folder)


def build(source: str, store: Path, tag: str) -> Built:
    """`imagefs build` from an OCI layout."""
    begin = time.monotonic()
    report = json.loads(output(_PROGRAM, "build", source, store, "--tag", tag, "--json"))
    built, hot = report["built"], report["hot"]
    metadata = built["metadata_bytes"] + (hot["metadata_bytes"] if hot else 0)
    return Built(time.monotonic() - begin, built["new_bytes"], hot["new_bytes"] if hot else 0, metadata)


def published(store: Path, tag: str) -> Published:
    """What lies in the directory store for this tag."""
    local = LocalStore(os.fsencode(store))
    try:
        images = Images(local)
        manifest = images.manifest(images.resolve(tag))
        indexes = [images.index_bytes(device.index) for device in manifest.devices]
        hot = 0
        for device in manifest.devices:
            if device.tag == _HOT:
                index = images.index(device.index)
                hot += sum(index.place(number).stored for number in range(index.blocks))
        metadata = (store / "metadata" / manifest.metadata.object[:2] / manifest.metadata.object).stat().st_size
        return Published(metadata, sum(map(len, indexes)), hot)
    finally:
        local.close()


def record(work: Path, store: Path, tag: str) -> None:
    """Start the image in a directory store once, and give it the hot device that follows from that."""
    with host(work) as machine:
        with machine.start(f"{store}#{tag}"):
            machine.ready()
        deadline = time.monotonic() + _STORED_WITHIN
        while not any((store / "traces").rglob("*-*")):
            if time.monotonic() > deadline:
                raise BenchError(f"no trace of the start appeared in {store} within {_STORED_WITHIN:g} s")
            time.sleep(0.1)
    output(_PROGRAM, "optimize", f"{store}#{tag}")
