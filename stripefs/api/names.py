"""Names of a source: what is there, and directories and files that are made, moved and removed.

Every call is repeated while the store is away, up to `io_timeout`; from the second time on an answer that says "already
so" is success. A striped file is one file here, whose parts stay for `grace` seconds after its name is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import trio

from stripefs.api.sources import Source
from stripefs.errors import Busy, Exists, IsADirectory, NotFound, StoreError
from stripefs.store.base import Kind, Status
from stripefs.write.names import ensure_usable, join, split
from stripefs.write.refusals import Invalid
from stripefs.write.session import WriteSession

__all__ = ["Names"]

_PASSES = 5.0
"""Seconds for which the rename of a directory waits for writers below it: as long as a mount waits."""

_LOOK_AGAIN = 0.2

_REMOVED_AT_ONCE = 16
"""Calls side by side when a tree is removed."""


class Names:
    """`session`: of the same source; it buries what loses its name."""

    def __init__(self, source: Source, session: WriteSession) -> None:
        self.source = source
        self._calls = source.calls
        self._session = session

    async def mkdir(self, path: bytes, mode: int) -> None:
        """Raises Exists, NotFound where the directory above is missing."""
        ensure_usable(split(path)[1])
        await self._calls.change(f"make directory {path!r}", Exists, self.source.store.mkdir, path, mode)

    async def rmdir(self, path: bytes) -> None:
        """Raises NotEmpty, NotFound, NotADirectory."""
        await self.source.stat(path)  # which knows nothing of hidden names
        await self._calls.change(f"remove directory {path!r}", NotFound, self.source.layouts.rmdir, path)
        self.source.layouts.forget()

    async def remove(self, path: bytes) -> None:
        """Take the name of a file away. Raises NotFound, IsADirectory."""
        if (await self.source.stat(path)).kind is Kind.DIRECTORY:
            raise IsADirectory(f"{path!r} is a directory")
        old = await self._old_versions(path)
        await self._calls.change(f"remove {path!r}", NotFound, self.source.store.remove, path)
        self._session.graves.bury(old)

    async def remove_tree(self, path: bytes) -> None:
        """A directory with all that is in it, or a file. What others put there meanwhile keeps the directory."""
        if (await self.source.stat(path)).kind is not Kind.DIRECTORY:
            await self.remove(path)
            return
        limiter = trio.CapacityLimiter(_REMOVED_AT_ONCE)
        failed: list[StoreError] = []

        @contextlib.contextmanager
        def noted() -> Iterator[None]:
            try:
                yield
            except NotFound:
                pass  # somebody else was quicker
            except StoreError as error:
                failed.append(error)

        async def clear(folder: bytes) -> None:
            entries: Sequence[Status] = ()
            with noted():
                entries = await self.source.listing(folder)
            async with trio.open_nursery() as nursery:
                for status in entries:
                    nursery.start_soon(clear if status.kind is Kind.DIRECTORY else drop, join(folder, status.name))
            if not failed:
                with noted():
                    await self.rmdir(folder)

        async def drop(file: bytes) -> None:
            with noted():
                async with limiter:
                    await self.remove(file)

        await clear(path)
        if failed:
            raise failed[0]

    async def rename(self, path: bytes, target: bytes, *, replace: bool) -> None:
        """Raises NotFound, Exists where something is in the way and not to be replaced; Busy for a directory below
        which files are being written, and for a file that this process is writing."""
        source = self.source
        ensure_usable(split(target)[1])
        if target.startswith(path + b"/"):
            raise Invalid(f"{path!r} cannot go below itself")
        status = await source.stat(path)
        if path == target:
            return
        if status.kind is Kind.DIRECTORY:
            await self._wait_for_writers(path)
        elif self._session.drafts.get(path) is not None:
            raise Busy(f"{path!r} is being written by this process", hint="close it first")
        old = await self._old_versions(target) if replace and status.kind is Kind.FILE else ()
        call = source.store.rename
        what = f"rename {path!r} to {target!r}"
        await self._calls.change(what, NotFound, lambda: call(path, target, replace=replace))
        source.layouts.forget()
        self._session.graves.bury(old)

    # Inner workings

    async def _wait_for_writers(self, directory: bytes) -> None:
        deadline = trio.current_time() + _PASSES
        drafts = self._session.drafts
        while who := await self._calls.thread(f"look who writes below {directory!r}", drafts.writer_below, directory):
            if trio.current_time() >= deadline:
                raise Busy(f"{directory!r} cannot be renamed: {who}")
            await trio.sleep(_LOOK_AGAIN)

    async def _old_versions(self, path: bytes) -> Iterable[str]:
        """Which striped versions lose their name with `path`. None where that cannot be told: gc finds those."""
        try:
            return await self._calls.thread(f"look at {path!r}", self._session.versions, path)
        except StoreError:
            return ()
