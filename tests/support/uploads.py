"""Writers over a local directory that is spread over hosts, with small units and parts so that tests are quick."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from stripefs.format.lock_and_record import LEASE
from stripefs.format.reserved_names import is_hidden
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore
from stripefs.testing.throttled import ThrottledStore
from stripefs.write import FileUpload, Layout, UploadManager, WritePolicy

KIB = 1 << 10
MIB = 1 << 20

DEADLINE = 60
"""Seconds after which a condition that has to come counts as missing."""


def spread(root: Path, **changed: object) -> ThrottledStore:
    """Four fast hosts with blocks of 64 KiB over the directory `root`."""
    given = {"hosts": 4, "rate": 4e9, "burst": 64 * MIB, "block_size": 64 * KIB, "host_timeout": 0.2, **changed}
    return ThrottledStore(LocalStore(str(root).encode()), **given)  # type: ignore[arg-type]


def policy(**changed: object) -> WritePolicy:
    """Units of 64 KiB, files are small below 128 KiB, parts as the memory of 32 MiB makes them."""
    given = {"unit": 64 * KIB, "small": 128 * KIB, "memory": 32 * MIB, "io_timeout": 5.0, **changed}
    return WritePolicy(**given)  # type: ignore[arg-type]


@asynccontextmanager
async def writing(store: Store, **changed: object) -> AsyncIterator[UploadManager]:
    """The uploads of a mount with `policy(**changed)`; what is still open in the end is abandoned.

    deadline: seconds after which the test has failed. lease: seconds that locks last.
    """
    deadline = float(changed.pop("deadline", DEADLINE))  # type: ignore[arg-type]
    delete: Callable[[Iterable[str], bytes], None] | None = changed.pop("schedule_delete", None)  # type: ignore[assignment]
    lease = float(changed.pop("lease", LEASE))  # type: ignore[arg-type]
    uploads = UploadManager(StripedStore(store), policy(**changed), schedule_delete=delete, lease=lease)
    with trio.fail_after(deadline):
        async with trio.open_nursery() as nursery:
            await nursery.start(uploads.run)
            yield uploads
            await uploads.aclose()
            nursery.cancel_scope.cancel()


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def save(uploads: UploadManager, path: bytes, data: bytes, *, step: int = MIB, **begin: object) -> None:
    """A whole file written from its start in steps."""
    upload = await uploads.begin(path, **{"replacing": None, **begin})  # type: ignore[arg-type]
    for at in range(0, len(data), step):
        await upload.write(at, data[at : at + step])
    await upload.publish(final=True)


async def begin_with(uploads: UploadManager, data: bytes, path: bytes = b"/file", **begin: object) -> FileUpload:
    """An upload to which `data` was written, at its end where it appends."""
    upload = await uploads.begin(path, **{"replacing": None, **begin})  # type: ignore[arg-type]
    await upload.write(upload.length, data)
    return upload


def load(store: Store, path: bytes) -> bytes:
    """All of a file as a mount reads it. Opened anew, so that nothing is remembered."""
    return bytes(StripedStore(store).get(path))


def hidden(root: Path) -> set[str]:
    """Hidden names below `root` but for the notes of the simulated hosts, and parts in the pool."""
    found = {str(path.relative_to(root)) for path in root.rglob("*") if is_hidden(path.name.encode())}
    found |= {str(path.relative_to(root)) for path in root.glob(".stripefs/*/*")}
    return {name for name in found if not name.startswith(".stripefs-hosts") and name != ".stripefs"}


def beside(root: Path) -> set[str]:
    """The same without parts in the pool."""
    return {name for name in hidden(root) if not name.startswith(".stripefs/")}


def locks(root: Path) -> set[str]:
    return {name for name in hidden(root) if name.endswith("-lock")}


def age(root: Path, seconds: float = LEASE + 1, name: str = ".file.stripefs-lock") -> None:
    """The lock is as old as if it had been renewed that long ago by the store's clock."""
    found = (root / name).stat()
    os.utime(root / name, ns=(found.st_atime_ns, found.st_mtime_ns - int(seconds * 1e9)))


class Held:
    """Calls of a method of `owner` that wait until they are `release`d; `begun` and `ended` count them."""

    def __init__(self, owner: object, name: str, matches: Callable[..., bool] = lambda *args: True) -> None:
        self._call, self._matches = getattr(owner, name), matches
        self._free = threading.Event()
        self.begun = self.ended = 0
        setattr(owner, name, self._held)

    def _held(self, *args: object, **how: object) -> object:
        if not self._matches(*args):
            return self._call(*args, **how)
        self.begun += 1
        assert self._free.wait(DEADLINE)
        try:
            return self._call(*args, **how)
        finally:
            self.ended += 1

    def release(self) -> None:
        self._free.set()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE):
        while not condition():
            await trio.sleep(0.005)


LAYOUTS = [Layout.CONCAT, Layout.STRIPED, Layout.PLAIN]
