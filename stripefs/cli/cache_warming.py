"""Cache warming for `stripefs warm`: reads files through the cache, and waits for the disk instead of leaving any out.

Cached blocks are not read again. Files that could not be kept although they were read (another process needed the
space, the disk failed) are tried once more at the end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import trio

from stripefs.assembly import find_source, open_source
from stripefs.cache.cache import Cache
from stripefs.cache.cached_store import CachedHandle, CachedStore
from stripefs.errors import StoreError, StripefsError
from stripefs.read import OpenFile, Reader
from stripefs.settings import MIB, ReadSettings, Settings, default_budget
from stripefs.store.allocator import tune_allocator
from stripefs.store.base import Kind, Status, Store
from stripefs.units import format_size, shown

__all__ = ["Choose", "Pace", "Steady", "Warmed", "warm_tree"]

STEP = 8 * MIB
"""Bytes read at once: a range of the reader, and a multiple of the blocks that are kept."""

AT_ONCE = 4
"""Files read at once: of small ones one alone would not keep all data hosts busy."""

LOOK_EVERY = 0.01
"""Seconds between looks at how much waits for the disk."""

Tell = Callable[["Warmed", str], None]
Pace = Callable[[int, int], Awaitable[None]]
Choose = Callable[[Store, Sequence[tuple[bytes, Status]]], Sequence[tuple[bytes, Status]]]


@dataclass(slots=True)
class Warmed:
    """Result of warming. Sizes in bytes: of all files, what was here before, what came from the store.

    missing: paths of which something is not here in the end. unkept: those that the cache takes nothing of. trouble:
    paths that could not be read, with the reason.
    """

    files: int = 0
    size: int = 0
    here_before: int = 0
    fetched: int = 0
    missing: list[bytes] = field(default_factory=list)
    unkept: list[bytes] = field(default_factory=list)
    trouble: list[tuple[bytes, str]] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.missing and not self.trouble


def _files_below(store: Store, path: bytes) -> Iterator[tuple[bytes, Status]]:
    """`path` itself when it is a file, else all files in that directory and below, in byte order."""
    status = store.stat(path)
    if status.kind is Kind.FILE:
        yield path, status
        return
    folders = [path]
    while folders:
        folder = folders.pop()
        below = []
        for batch in store.scandir(folder):
            for entry in batch:
                name = folder.rstrip(b"/") + b"/" + entry.name
                if entry.kind is Kind.FILE:
                    yield name, entry
                elif entry.kind is Kind.DIRECTORY:
                    below.append(name)
        folders += reversed(below)


def warm_tree(
    settings: Settings, inside: bytes, pace: Pace, tell: Tell, choose: Choose = lambda _store, files: files
) -> tuple[Warmed, str]:
    """Bring files into the cache of `settings`: those that `choose` takes of the ones at `inside`, as
    `stripefs.cli.paths.place` has it. Answers how that went, and the store's URL. Raises StripefsError.

    pace: is waited for before each read, with the bytes of it and those that were fetched before. tell: gets what was
    done so far and the file that it was done for.
    """
    tune_allocator()
    settings, top = find_source(settings, inside, exists=True)
    # Half of the memory for what is read ahead, and room for all of it among what waits for the disk: so nothing is
    # left out while we wait for the disk.
    half = max(64 * MIB, (settings.read.memory or default_budget()) // 2)
    with (
        closing(Cache(settings.cache, queue=2 * half, patient=True)) as cache,
        closing(open_source(settings, cache)) as source,
    ):
        cached = source.cached
        assert cached is not None
        files = choose(cached, list(_files_below(cached, top)))
        _ensure_room(sum(status.length for path, status in files if cached.keeps(path, status)), cache)
        paths = [path for path, _ in files]
        return trio.run(_warm, cached, paths, settings.read._replace(memory=half), pace, tell), source.base.url


def _ensure_room(size: int, cache: Cache) -> None:
    """Raises StoreError where the cache could never hold `size` bytes, whatever is evicted."""
    room = cache.quota.capacity()
    if size > room:
        raise StoreError(
            f"{format_size(size)} do not fit into the cache, which can hold {format_size(room)}; nothing was fetched",
            hint="raise --cache-size, make room on that disk, or warm fewer files",
        )


async def _warm(store: CachedStore, paths: Sequence[bytes], settings: ReadSettings, pace: Pace, tell: Tell) -> Warmed:
    found = Warmed(files=len(paths))
    reader = Reader(store, settings)
    work = _Work(store, reader, found, pace, tell)
    async with trio.open_nursery() as nursery:
        await nursery.start(reader.run)
        left = await work.all(paths)
        found.missing = await work.all(left) if left else []
        nursery.cancel_scope.cancel()
    return found


class Steady:
    """A pace of `rate` bytes a second on the whole, 0 for as fast as can be."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._due = time.monotonic()

    async def __call__(self, size: int, _fetched: int) -> None:
        if self._rate:
            now = time.monotonic()
            due = max(self._due, now - 1.0)
            self._due = due + size / self._rate
            await trio.sleep(max(0.0, due - now))


class _Work:
    def __init__(self, store: CachedStore, reader: Reader, found: Warmed, pace: Pace, tell: Tell) -> None:
        self._store = store
        self._reader = reader
        self._found = found
        self._pace = pace
        self._tell = tell
        self._seen: set[bytes] = set()

    async def all(self, paths: Sequence[bytes]) -> list[bytes]:
        """Read what is not here of these; those of which something still is not, once all is on disk."""
        queue = list(reversed(paths))

        async def some() -> None:
            while queue:
                await self._guarded(queue.pop(), self._fetch)

        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE, len(queue))):
                nursery.start_soon(some)
        while self._store.cache.queue.waiting:
            await trio.sleep(LOOK_EVERY)
        broken = {path for path, _ in self._found.trouble}
        left: list[bytes] = []

        async def look(file: OpenFile) -> None:
            if await _absent(file):
                left.append(file.path)

        for path in paths:
            if path not in broken and path not in self._found.unkept:
                await self._guarded(path, look)
        return left

    async def _guarded(self, path: bytes, act: Callable[[OpenFile], Awaitable[None]]) -> None:
        """`act` on the file, open; its trouble is noted."""
        try:
            file = await self._reader.open(path)
            try:
                await act(file)
            finally:
                await file.aclose()
        except StripefsError as error:
            self._found.trouble.append((path, error.message))

    async def _fetch(self, file: OpenFile) -> None:
        absent = await _absent(file)
        if file.path not in self._seen:
            self._seen.add(file.path)
            self._found.size += file.status.length
            self._found.here_before += file.status.length - sum(length for _, length in absent)
            if not isinstance(file.handle, CachedHandle):
                self._found.unkept.append(file.path)
        if not isinstance(file.handle, CachedHandle):
            return
        for offset, length in absent:
            end = offset + length
            while offset < end:
                size = min(end - offset, STEP - offset % STEP)
                await self._pace(size, self._reader.planner.bytes_fetched)
                await file.read(offset, size)
                offset += size
                self._found.fetched += size
                self._tell(self._found, shown(file.path))
                while self._store.cache.queue.waiting > self._reader.budget // 2:
                    await trio.sleep(LOOK_EVERY)


async def _absent(file: OpenFile) -> list[tuple[int, int]]:
    handle = file.handle
    if not isinstance(handle, CachedHandle):
        return [(0, file.status.length)]
    return await trio.to_thread.run_sync(handle.absent)
