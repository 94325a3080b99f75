"""Containers of the images that are measured: started by runc from a bundle, and by imagefs from a store.

For imagefs images are also built, published and recorded here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import BenchError
from bench.harness.host import PROGRAM, Host, await_plan, host
from bench.harness.programs import Start, last_line, output, run, started
from imagefs.repository.images import Images
from imagefs.repository.store import StoreRepository
from imagefs.run.host import seccomp_profile
from imagefs.run.privileges import CAPABILITIES
from stripefs.store.local import LocalStore

__all__ = [
    "Built",
    "Published",
    "build",
    "interpreter_seconds",
    "prepare_seconds",
    "published",
    "record",
    "remove_containers",
    "runc",
    "start",
]

_PREFIX = "bench-image-"
_HOT = "hot"


@contextmanager
def runc(bundle: Path, name: str, *, filtered: bool = True) -> Iterator[Start]:
    """The container of a bundle that umoci unpacked. Raises BenchError.

    filtered: with the filter of system calls that `imagefs run` gives its containers, as Docker and containerd give
    theirs one of about the same size. umoci's has none.
    """
    config = json.loads((bundle / "config.json").read_text())
    config["process"]["terminal"] = False
    profile = seccomp_profile("default" if filtered else "unconfined")
    config["linux"]["seccomp"] = profile and profile.filter(CAPABILITIES)
    (bundle / "config.json").write_text(json.dumps(config))
    container = f"{_PREFIX}{name}-{os.getpid()}"
    try:
        with started(["runc", "run", "--bundle", str(bundle), container]) as start:
            yield start
    finally:
        if container in _containers():
            run("runc", "delete", "--force", container)


def remove_containers() -> None:
    """Remove those that a killed benchmark left behind."""
    for container in _containers():
        run("runc", "delete", "--force", container)


def _containers() -> list[str]:
    return [name for name in output("runc", "list", "--quiet").split() if name.startswith(_PREFIX)]


@dataclass(frozen=True, slots=True)
class Built:
    """Seconds of a build, and the bytes that it stored: blocks that the store did not have, the hot device's apart, and
    metadata."""

    seconds: float
    blocks: int
    hot: int
    metadata: int


@dataclass(frozen=True, slots=True)
class Published:
    """Bytes that a start with a trace fetches ahead, compressed: documents, hot device. codecs: of the packs of each
    device, by its tag, such as "zstd"."""

    metadata: int
    indexes: int
    hot: int
    codecs: dict[str, str]

    @property
    def ahead(self) -> int:
        return self.metadata + self.indexes + self.hot


@contextmanager
def start(machine: Host, image: str, *options: str) -> Iterator[Start]:
    """`imagefs run` until the container is ready. Raises BenchError."""
    command = [str(PROGRAM), "run", "--oci-runtime", "runc", *options, image]
    with started(command, os.environ | machine.environment) as begun:
        yield begun


def prepare_seconds(machine: Host, image: str, count: int) -> float:
    """Seconds from executing `imagefs run` until it executes the OCI runtime: the median of `count`.

    A script that tells the time stands for the runtime. Its shell takes 1 to 2 ms to start, which count. Raises
    BenchError.
    """
    clock = machine.folder / "runc"
    clock.write_text("#!/bin/bash\necho $EPOCHREALTIME\n")
    clock.chmod(0o755)
    command = [str(PROGRAM), "run", "--oci-runtime", str(clock), image]
    environment = os.environ | machine.environment
    found = []
    for _ in range(count):
        begin = time.time()
        # It says that no container was started, and fails.
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        try:
            found.append(float(done.stdout) - begin)
        except ValueError:
            raise BenchError(f"imagefs run executed no runtime: {last_line(done.stderr)}") from None
    return statistics.median(found)


def interpreter_seconds(count: int) -> float:
    """Seconds that the Python of `imagefs run` takes to start and to end when it is to do nothing: the median of
    `count`. Raises BenchError."""
    found = []
    for _ in range(count):
        begin = time.monotonic()
        run(sys.executable, "-c", "")
        found.append(time.monotonic() - begin)
    return statistics.median(found)


def build(source: str, store: Path, tag: str) -> Built:
    """`imagefs build` from an OCI layout."""
    begin = time.monotonic()
    report = json.loads(output(PROGRAM, "build", source, store, "--tag", tag, "--json"))
    built, hot = report["built"], report["hot"]
    metadata = built["metadata_bytes"] + (hot["metadata_bytes"] if hot else 0)
    return Built(time.monotonic() - begin, built["new_bytes"], hot["new_bytes"] if hot else 0, metadata)


def published(store: Path, tag: str) -> Published:
    """Sizes in the directory store for this tag."""
    local = LocalStore(os.fsencode(store))
    try:
        images = Images(StoreRepository(local))
        manifest = images.manifest(images.resolve(tag))
        indexes = [images.object("indexes", device.index) for device in manifest.devices]
        hot, codecs = 0, {}
        for device in manifest.devices:
            index = images.index(device.index)
            codecs[device.tag] = " and ".join(sorted({pack.codec for pack in index.packs}))
            if device.tag == _HOT:
                hot += sum(index.place(number).stored for number in range(index.blocks))
        metadata = (store / "metadata" / manifest.metadata.object[:2] / manifest.metadata.object).stat().st_size
        return Published(metadata, sum(map(len, indexes)), hot, codecs)
    finally:
        local.close()


def record(work: Path, store: Path, tag: str) -> None:
    """Start the image in a directory store once, and give it the hot device that follows from that."""
    with host(work) as machine:
        with start(machine, f"{store}#{tag}"):
            machine.ready()
        await_plan(store)
    output(PROGRAM, "optimize", f"{store}#{tag}")
