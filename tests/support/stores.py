"""Material of stores' tests: places and their content, odd names, bytes, and a watch that records."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import pytest

from stripefs.errors import Abandoned
from stripefs.store.base import Status, Store

__all__ = ["ODD_NAMES", "Place", "Populate", "RecordingWatch", "cancel_on_the_way", "content", "listing"]

ODD_NAMES = (
    b" leading and trailing ",
    b".hidden",
    b"100%",
    b"%41",
    b"a+b",
    b"a?b=c&d",
    b"a#b",
    b"quote'\"`",
    b"back\\slash",
    b"[glob]*{x}",
    b"semi;colon,comma",
    "grüße 世界 🎉".encode(),
    b"-dash",
    b"~tilde",
)
"""Names that some client, URL or shell has been known to mangle. All valid UTF-8 and all allowed in HDFS."""


class Populate(Protocol):
    """Changes the place behind the store's back. Paths are the store's. A missing parent folder is made."""

    def write(self, path: bytes, data: bytes) -> None:
        """Make the file, or put a new version in its place as the store's users do (rename, overwrite, PUT)."""

    def append(self, path: bytes, data: bytes) -> None:
        """Add to the file in place; where the store cannot, write the whole anew."""

    def truncate(self, path: bytes, length: int) -> None:
        """Cut the file in place; where the store cannot, write the whole anew."""

    def delete(self, path: bytes) -> None: ...

    def mkdir(self, path: bytes) -> None: ...


class Place(NamedTuple):
    store: Store
    populate: Populate


class RecordingWatch:
    """Notes what a read reports. `give_up_at`: bytes after which `progress` raises Abandoned."""

    def __init__(self, *, cancelled: bool = False, give_up_at: int | None = None) -> None:
        self.cancelled = cancelled
        self.received: list[int] = []
        self.close: Callable[[], None] | None = None
        self.registered = threading.Event()
        self.served: list[str] = []
        self._give_up_at = give_up_at

    def progress(self, received: int) -> None:
        self.received.append(received)
        if self._give_up_at is not None and received >= self._give_up_at:
            self.cancelled = True
            raise Abandoned("the test gave up")

    def unconfirmed(self) -> None:
        raise AssertionError("bytes of this read need no confirmation")

    def served_by(self, host: str) -> None:
        self.served.append(host)

    def on_cancel(self, close: Callable[[], None] | None) -> None:
        self.close = close
        if close is not None:
            self.registered.set()

    def cancel(self) -> None:
        """Give the read up, which is under way or about to be."""
        assert self.registered.wait(30)
        self.cancelled = True
        close = self.close
        assert close is not None
        close()


def cancel_on_the_way(read: Callable[..., object]) -> None:
    """Begin `read(watch=…)`, which would not end for long, and cancel it: it is given up at once."""
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, watch=watch)
        watch.cancel()
        with pytest.raises(Abandoned):
            reading.result(30)
    assert watch.close is None


@functools.cache
def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def listing(store: Store, path: bytes, after: bytes = b"") -> list[Status]:
    return list(itertools.chain.from_iterable(store.scandir(path, after)))
