"""Material of the cache's tests: a store that counts, a cache in front of it, and files of an age."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from stripefs.cache import policy, writeback
from stripefs.cache.cache import Cache
from stripefs.cache.cached_store import CachedStore
from stripefs.cache.segment import CacheSegment
from stripefs.settings import CacheSettings, StoreSettings
from stripefs.store.base import Handle
from stripefs.store.url import open_store
from stripefs.testing.counting import CountingStore, Counts
from tests.support.stores import content

MIB = 1 << 20
PATIENCE = 60.0

AGE = 1_700_000_000
"""When files of tests were changed, in seconds since 1970: what was changed just now is not cached."""


def write(path: Path, size: int, seed: int = 0, *, changed: float = AGE, times: int = 1) -> bytes:
    """A file of so many bytes, so many times over, replaced as users do it."""
    data = content(size, seed) * times
    fresh = path.with_name(".fresh")
    fresh.write_bytes(data)
    os.utime(fresh, (changed, changed))
    fresh.rename(path)
    return data


class Cached(NamedTuple):
    """A cache in front of a local directory. `counts` tells what the directory was asked for."""

    store: CachedStore
    counts: Counts
    folder: Path

    def read(self, path: bytes, offset: int = 0, length: int | None = None) -> bytes:
        """As one reader that then goes away, and what it read is on disk when this is back."""
        handle = self.store.open(path)
        try:
            return read(handle, offset, handle.status.length - offset if length is None else length)
        finally:
            handle.close()
            assert self.store.cache.queue.drain(PATIENCE)

    def fetched(self, path: bytes, offset: int = 0, length: int | None = None) -> int:
        """Bytes that the directory is asked for when that is read."""
        before = self.counts.bytes
        self.read(path, offset, length)
        return self.counts.bytes - before

    def forget(self) -> None:
        """Have nothing open, as another process: what was evicted is served as long as it is."""
        for key, number in list(self.store.cache.segments._open):
            self.store.cache.segments.forget(key, number)

    def segments(self) -> list[Path]:
        return sorted(
            path
            for path in self.folder.glob("stripefs-1/versions/*/*/*")
            if path.name.isalnum() and len(path.name) == 6
        )


def read(handle: Handle, offset: int, length: int, step: int = 8 * MIB) -> bytes:
    """In steps, as the reader does."""
    parts = []
    while length:
        size = min(length, step - offset % step)
        parts.append(bytes(handle.read(offset, size)))
        offset, length = offset + size, length - size
    return b"".join(parts)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    overwrite(path, offset, bytes([take(path, offset, 1)[0] ^ 0x40]))


def take(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), size, offset)


class Gate:
    """Holds up what goes to the disk until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        whole = CacheSegment.write

        def wait(segment: CacheSegment, blocks: range, data: memoryview) -> None:
            assert self.open.wait(PATIENCE)
            whole(segment, blocks, data)

        monkeypatch.setattr(CacheSegment, "write", wait)


def refusing(number: int) -> Callable[..., None]:
    """In the place of a method of segments: a disk that answers with this error number."""

    def refuse(*_args: object, **_names: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@contextmanager
def cached(
    source: Path, folder: Path, prefix: str = "counting", query: str = "", **settings: object
) -> Iterator[Cached]:
    """`settings` as of CacheSettings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "SLOWER", 0.0)  # these sources are in memory: no disk is as fast
        patch.setattr(writeback, "LONGEST_WAIT", float("inf"))  # nor is one too slow
        inner = open_store(StoreSettings(url=f"{prefix}+file://{source}{query}"))
        assert isinstance(inner, CountingStore)
        cache = Cache(CacheSettings(directory=str(folder), **{"size": 1 << 40, **settings}))  # type: ignore[arg-type]
        with closing(cache), closing(CachedStore(inner, cache)) as store:
            yield Cached(store, inner.counts, folder)
