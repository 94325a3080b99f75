"""Material of the tests of faults: a small image, its objects, a store that comes and goes, damage, and what is left.

Mounting and unmounting without a process of its own each time is what makes many of them affordable; the command does
the same, and has tests of its own.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from imagefs import mounts
from imagefs.daemon.client import Client
from imagefs.daemon.launcher import end_kept, is_kept
from imagefs.daemon.protocol import Recording
from imagefs.settings import TreeOptions
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings
from tests.tools.imagefs_daemon import PATIENCE, Service, built, eventually
from tests.tools.web_server import Fault, WebServer

__all__ = [
    "DAMAGE",
    "MIB",
    "FickleServer",
    "cut",
    "drop_pages",
    "ensure",
    "flip",
    "kill_supervisor",
    "left",
    "make_image",
    "mount_here",
    "mounts_below",
    "objects",
    "orphan",
    "replace",
    "start_reader",
    "sums",
    "umount_here",
    "until_nothing_is_left",
]

MIB = 1 << 20


def make_image(folder: Path, seed: int = 1, size: int = 4 * MIB, small: int = 12) -> tuple[Path, Path]:
    """A tree with one large file and so many small ones, and the store in which it is tagged t."""
    chance = random.Random(seed)
    source, store = folder / "source", folder / "store"
    source.mkdir(parents=True)
    (source / "large").write_bytes(chance.randbytes(size))
    for number in range(small):
        (source / f"small{number}").write_bytes(chance.randbytes(chance.randrange(1, 150_000)))
    built(source, store, "t")
    return source, store


def sums(root: Path) -> dict[str, str]:
    """Name and SHA-256 of all files."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.iterdir())}


def objects(store: Path, kind: str) -> list[Path]:
    """The files of one kind in a store, or in a cache."""
    return sorted(path for path in (store / kind).rglob("*") if path.is_file() and not path.name.startswith("."))


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    replace(path, bytes(data))


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    replace(path, path.read_bytes()[: path.stat().st_size // 2])


def replace(path: Path, data: bytes) -> None:
    """Other bytes under the same name, and another inode, as when a store is restored from a bad copy."""
    other = path.with_name(".other")
    other.write_bytes(data)
    os.replace(other, path)


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "cut": cut}


def mounts_below(service: Service) -> list[str]:
    return sorted(mount.path for mount in kernel.mounts() if Path(mount.path).is_relative_to(service.folder))


def ensure(service: Service) -> None:
    """Start the daemon with the settings that the service gives to commands."""
    service.run("mount", "/nowhere#t", str(service.mountpoint("nothing")))
    assert service.answers()


def mount_here(service: Service, store: Path | str, target: Path, *, record: bool = False, **options: Any) -> None:
    """Mount the image tagged t of this store. The daemon runs already."""
    client, recording = Client(service.settings), Recording(off=not record)
    mounts.mount(client, StoreSettings(url=str(store)), "t", str(target), TreeOptions(**options), recording)


def umount_here(service: Service, target: Path, *, lazy: bool = False) -> None:
    mounts.umount(Client(service.settings), str(target), lazy=lazy)


def kill_supervisor(service: Service) -> None:
    """And whatever it had: nobody keeps what it served."""
    orphan(service)
    assert end_kept(service.settings)
    eventually(lambda: not service.keepers(), "the end of its keeper")


def orphan(service: Service) -> None:
    """Kill the supervisor, whose keeper keeps what it served."""
    os.kill(service.status()["supervisor_pid"], signal.SIGKILL)
    eventually(lambda: not service.answers() and is_kept(service.settings), "the end of the daemon")


def left(service: Service) -> list[str]:
    """Leftovers besides the daemon: uses, mounts, folders of uses, and processes but for its worker."""
    status = service.status()
    runtime = Path(service.settings.runtime, "imagefs")
    folders = [Path(service.settings.cache, "upper"), runtime / "mounts", runtime / "ready"]
    return [
        *(f"use {image['id']} at {image['mountpoint']}" for image in status["images"]),
        *(f"mount {path}" for path in mounts_below(service) if path != service.settings.devices),
        *(str(path) for folder in folders if folder.exists() for path in folder.iterdir()),
        *(f"process {process}" for process in service.processes() if process != status["worker_pid"]),
    ]


def until_nothing_is_left(service: Service) -> None:
    end = time.monotonic() + PATIENCE
    while (found := left(service)) and time.monotonic() < end:
        time.sleep(0.05)
    assert found == []


_READER = """
import hashlib, os, sys
for name in sorted(os.listdir(sys.argv[1]), reverse=len(sys.argv) > 2):
    with open(os.path.join(sys.argv[1], name), 'rb') as file:
        print(name, hashlib.file_digest(file, 'sha256').hexdigest(), flush=True)
"""


def start_reader(target: Path, *options: str) -> subprocess.Popen[str]:
    """A process that reads all files, and prints lines of name and SHA-256. With an option it begins with the last."""
    command = [sys.executable, "-c", _READER, str(target), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def drop_pages(path: Path) -> None:
    """Have the kernel forget what it read of a file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class FickleServer(WebServer):
    """`always`: what goes wrong with every request, while it is set."""

    always: Fault | None = None

    def next_fault(self, method: str) -> Fault | None:
        return self.always or super().next_fault(method)
