"""Names of a source: what is there, and directories and files that are made, moved and removed.

Every call is repeated while the store is away, up to `io_timeout`; from the second time on an answer that says "already
so" is success. A striped file is one file here, whose parts stay for `grace` seconds after its name is gone.
"""

from __future__ import annotations

from stripefs.api.source import Source
from stripefs.errors import IsADirectory, NotEmpty, NotFound, Unsupported
from stripefs.format.manifest import STRIPED_ID
from stripefs.format.reserved_names import POOL
from stripefs.store.base import Attributes, Kind, Status
from stripefs.write.errors import Invalid
from stripefs.write.namespace import LostVersions, wait_for_writers
from stripefs.write.upload_names import ensure_usable
from stripefs.write_session import WriteSession

__all__ = ["Names"]


class Names:
    """`session`: of the same source; it buries what loses its name."""

    def __init__(self, source: Source, session: WriteSession) -> None:
        self.source = source
        self._calls = source.calls
        self._drafts = session.drafts
        self._graves = session.graves
        self._losses = LostVersions(source.calls, session.graves.bury, session.versions, session.drafts.writer_of)

    async def mkdir(self, path: bytes, mode: int) -> None:
        """Raises Exists, NotFound where the directory above is missing."""
        ensure_usable(path, self.source.store)
        await self._calls.call(f"make directory {path!r}", self.source.store.mkdir, path, mode)

    async def rmdir(self, path: bytes) -> None:
        """Raises NotEmpty, NotFound, NotADirectory."""
        await self.source.stat(path)  # which knows nothing of hidden names
        await self._calls.change(f"remove directory {path!r}", NotFound, self.source.layouts.rmdir, path)
        self.source.layouts.forget()

    async def set_attributes(self, path: bytes, wanted: Attributes) -> None:
        """Raises NotFound, PermissionDenied, Unsupported."""
        await self.source.stat(path)  # which knows nothing of hidden names
        if not self.source.store.capabilities.attributes:
            raise Unsupported(f"{self.source.store.url} keeps no permissions and no times")
        change = self.source.store.set_attributes
        await self._calls.change(f"set attributes of {path!r}", (), change, path, wanted)

    async def remove(self, path: bytes, seen: Status | None = None) -> None:
        """Take the name of a file away. seen: what a listing has just said of it. Raises NotFound, IsADirectory, Busy
        where somebody writes it."""
        if (seen or await self.source.stat(path)).kind is Kind.DIRECTORY:
            raise IsADirectory(f"{path!r} is a directory")
        await wait_for_writers(self._calls, f"{path!r} is not removed", self._drafts.writer_of, path)
        plain = seen is not None and not STRIPED_ID.search(seen.file_id)
        old = frozenset() if plain else await self._losses.of(path)
        await self._calls.change(f"remove {path!r}", NotFound, self.source.store.remove, path)
        await self._losses.bury(old, path, held=False)

    async def remove_pool(self) -> None:
        """The pool of a source in which no file is left. Raises NotEmpty where it keeps something."""
        await self._graves.settle()
        store = self.source.store.inner
        try:
            await self._calls.change("remove a pool", NotFound, store.rmdir, POOL)
        except NotEmpty:
            raise NotEmpty(
                f"the pool of {self.source.store.url} stays, as it keeps parts of removed files for their readers",
                hint="a gc removes them a day later; with a grace of 0 they go at once",
            ) from None
        except (NotFound, Unsupported):
            pass  # there is none, or the store knows no directories without files

    async def rename(self, path: bytes, target: bytes, *, replace: bool) -> None:
        """Raises NotFound, Exists where something is in the way and not to be replaced; Busy where somebody, this
        process too, writes a file of either name, or below a directory."""
        source = self.source
        ensure_usable(target, self.source.store)
        if target.startswith(path + b"/"):
            raise Invalid(f"{path!r} cannot go below itself")
        status = await source.stat(path)
        if path == target:
            return
        refused = f"{path!r} is not renamed to {target!r}"
        if status.kind is Kind.DIRECTORY:
            await wait_for_writers(self._calls, refused, self._drafts.writer_below, path)
        else:
            await wait_for_writers(self._calls, refused, self._drafts.writer_of, path, target)
        old = await self._losses.of(target) if replace and status.kind is Kind.FILE else frozenset()
        call = source.store.rename
        what = f"rename {path!r} to {target!r}"
        await self._calls.change(what, NotFound, lambda: call(path, target, replace=replace))
        source.layouts.forget()
        await self._losses.bury(old, target, held=False)
