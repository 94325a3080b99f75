"""A reader that keeps the parts of striped versions which it has open: a replaced one is not deleted under it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import trio

from stripefs.errors import StoreError
from stripefs.store.base import Block, Buffer, Identity, Status
from stripefs.tree import OpenFile, Reader
from stripefs.write.graves import Graves

__all__ = ["HoldingReader"]

_STRIPED = re.compile(r":[0-9a-f]{16}\.[0-9]+")
"""How the file id of a striped version ends (`stripefs.store.wrappers.striped`)."""


class HoldingReader:
    """`versions(path)` blocks and answers the pool folders that the file at `path` needs."""

    def __init__(self, reader: Reader, graves: Graves, versions: Callable[[bytes], Iterable[str]]) -> None:
        self._reader = reader
        self._graves = graves
        self._versions = versions

    async def open(self, path: bytes, expect: Identity | None) -> OpenFile:
        file = await self._reader.open(path, expect)
        if _STRIPED.search(file.status.file_id) is None:
            return file
        try:
            versions = tuple(await trio.to_thread.run_sync(self._versions, path, abandon_on_cancel=True))
        except StoreError:
            return file  # replaced just now: it has the grace that everyone has
        except BaseException:
            with trio.CancelScope(shield=True):
                await file.aclose()
            raise
        self._graves.hold(versions)
        return _Held(file, lambda: self._graves.release(versions))


class _Held:
    def __init__(self, file: OpenFile, release: Callable[[], None]) -> None:
        self.status: Status = file.status
        self._file = file
        self._release: Callable[[], None] | None = release

    async def read(self, offset: int, size: int) -> Buffer:
        return await self._file.read(offset, size)

    async def locate(self, offset: int, length: int) -> Sequence[Block]:
        return await self._file.locate(offset, length)

    async def aclose(self) -> None:
        release, self._release = self._release, None
        try:
            await self._file.aclose()
        finally:
            if release is not None:
                release()
