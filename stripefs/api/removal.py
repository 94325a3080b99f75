"""Directories that are removed with all that is in them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from stripefs.api.names import Names
from stripefs.errors import NotFound, StoreError
from stripefs.store.base import Kind, Status
from stripefs.write.upload_names import join_path

__all__ = ["Inside", "remove_tree"]

_AT_ONCE = 16
"""Files that are removed side by side."""

Inside = Callable[[bytes], Awaitable[Names | None]]
"""The names of the source that a directory is by itself, with a pool of its own; None for any other."""


async def remove_tree(names: Names, path: bytes, place: bytes, inside: Inside) -> None:
    """Remove a directory with all that is in it, or a file: `path` in the source of `names`, which is `place` for
    `inside`. A pool in it goes with the directory, once nothing is kept in it.

    What others put there meanwhile keeps the directory. Raises the first error when all the rest was removed.
    """
    if (await names.source.stat(path)).kind is not Kind.DIRECTORY:
        await names.remove(path)
        return
    removal = _Removal(inside)
    await removal.clear(names, path, place)
    if removal.failed:
        raise removal.failed[0]


class _Removal:
    def __init__(self, inside: Inside) -> None:
        self.failed: list[StoreError] = []
        self._inside = inside
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def clear(self, names: Names, folder: bytes, place: bytes) -> None:
        with self._noted():
            own = await self._inside(place)
            if own is None:
                await self._empty(names, folder, place)
            else:
                await self._empty(own, b"/", place)
                if not self.failed:
                    await own.remove_pool()
            if not self.failed:
                await names.rmdir(folder)

    async def _empty(self, names: Names, folder: bytes, place: bytes) -> None:
        entries: Sequence[Status] = ()
        with self._noted():
            entries = await names.source.listing(folder)
        ahead = iter(entries)

        async def work() -> None:
            for status in ahead:
                below = join_path(folder, status.name)
                if status.kind is Kind.DIRECTORY:
                    await self.clear(names, below, join_path(place, status.name))
                else:
                    await self._remove(names, below, status)

        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(entries))):
                nursery.start_soon(work)

    async def _remove(self, names: Names, file: bytes, seen: Status) -> None:
        with self._noted():
            async with self._limiter:
                await names.remove(file, seen)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except NotFound:
            pass  # somebody else was quicker
        except StoreError as error:
            self.failed.append(error)
