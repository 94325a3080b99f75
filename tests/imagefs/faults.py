"""What the tests of faults share: a small image, its objects, a store that comes and goes, and damage."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from imagefs import mounts
from imagefs.daemon.client import Client, Recording
from stripefs.mount import kernel
from stripefs.settings import StoreSettings
from tests.imagefs.service import Service, built
from tests.store.web_server import Fault, WebServer

__all__ = [
    "DAMAGE",
    "MIB",
    "FickleServer",
    "cut",
    "ensure",
    "flip",
    "make_image",
    "mount_here",
    "mounts_below",
    "objects",
    "replace",
    "status_of",
    "sums",
    "umount_here",
]

MIB = 1 << 20


def make_image(folder: Path, seed: int = 1, size: int = 4 * MIB) -> tuple[Path, Path]:
    """A tree with one large and some small files, and the store in which it is tagged t."""
    chance = random.Random(seed)
    source, store = folder / "source", folder / "store"
    source.mkdir(parents=True)
    (source / "large").write_bytes(chance.randbytes(size))
    for number in range(12):
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


def mount_here(service: Service, store: Path, target: Path, **options: Any) -> None:
    """Without a process of its own, which takes most of the time; the daemon runs already."""
    client, record = Client(service.settings), Recording(off=True)
    mounts.mount(client, StoreSettings(url=str(store)), "t", str(target), mounts.Options(**options), record)


def status_of(service: Service) -> dict[str, Any]:
    return Client(service.settings).status()


def umount_here(service: Service, target: Path, *, lazy: bool = False) -> None:
    mounts.umount(Client(service.settings), str(target), lazy=lazy)


class FickleServer(WebServer):
    """`always`: what goes wrong with every request, while it is set."""

    always: Fault | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def next_fault(self, method: str) -> Fault | None:
        return self.always or super().next_fault(method)
