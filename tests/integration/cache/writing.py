"""A process that writes through a cache, and what the next one finds there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, closing
from pathlib import Path

import trio

from stripefs.cache.cache import Cache
from stripefs.cache.cached_store import CachedHandle, CachedStore
from stripefs.settings import CacheSettings
from stripefs.store.striped import StripedStore
from stripefs.testing.counting import CountingStore
from stripefs.write import FileUpload, Layout, UploadManager
from tests.support.caches import MIB, read
from tests.support.uploads import policy, save, spread
from tests.support.waiting import PATIENCE

__all__ = ["SIZE", "World", "put", "world"]

SIZE = 21 * MIB + 777


class World:
    """A source, and the cache in front of it as one process has it. `counts` tells what was read of files."""

    def __init__(self, source: Path, folder: Path, queue: int = 1 << 30, **settings: object) -> None:
        self.view = StripedStore(spread(source))
        counting = CountingStore(self.view)
        self.counts = counting.counts
        given = {"directory": str(folder), "writes": True, "size": 1 << 40, **settings}
        self.cache = Cache(CacheSettings(**given), queue=queue)  # type: ignore[arg-type]
        self.store = CachedStore(counting, self.cache)
        self.folder = folder

    @asynccontextmanager
    async def writing(self, layout: Layout) -> AsyncIterator[UploadManager]:
        """Uploads of one process. The bytes that they keep are on disk at the end."""
        uploads = UploadManager(self.view, policy(layout=layout), observers=self.store.write_observer)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(uploads.run)
                yield uploads
                await uploads.aclose()
                nursery.cancel_scope.cancel()
        self.drain()

    @asynccontextmanager
    async def uploading(
        self, data: bytes, layout: Layout = Layout.STRIPED, path: bytes = b"/model"
    ) -> AsyncIterator[FileUpload]:
        """The upload of a new file, by an uploader of its own, with `data` in it."""
        async with self.writing(layout) as uploads:
            upload = await uploads.begin(path, replacing=None)
            await put(upload, data)
            yield upload

    async def save(self, data: bytes, step: int = MIB, *, layout: Layout = Layout.STRIPED) -> None:
        """The file /model, by an uploader of its own."""
        async with self.writing(layout) as uploads:
            await save(uploads, b"/model", data, step=step)

    def drain(self) -> None:
        assert self.cache.queue.drain(PATIENCE)

    def load(self, path: bytes = b"/model") -> bytes:
        with closing(self.store.open(path)) as handle:
            return read(handle, 0, handle.status.length)

    def absent(self, path: bytes = b"/model") -> list[tuple[int, int]]:
        with closing(self.store.open(path)) as handle:
            assert isinstance(handle, CachedHandle)
            return handle.absent()

    def left(self) -> set[str]:
        """Names of all that is in the folder, but for how much it takes."""
        return {path.name for path in self.folder.rglob("*") if not path.is_dir()} - {"usage", "eviction"}

    def close(self) -> None:
        self.view.close()
        self.cache.close()


def world(source: Path, folder: Path, **settings: object) -> AbstractContextManager[World]:
    return closing(World(source, folder, **settings))  # type: ignore[arg-type]


async def put(upload: FileUpload, data: bytes, step: int = MIB) -> None:
    for at in range(0, len(data), step):
        await upload.write(upload.length, data[at : at + step])
