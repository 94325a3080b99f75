"""What stands at the name of a file that is being written, and the one step that puts a version there.

A call that is cancelled, or not answered in time, goes on in its thread and may have its effect later. So what is on
its way to the name is known here until its end is: it is taken back by removing what it comes from, and while nobody
knows whether that was in time the lock of the name has to stay.
"""

from __future__ import annotations

from collections.abc import Awaitable

from stripefs.errors import NotFound, StaleVersion, StoreError, Transient
from stripefs.layout.striped import Manifest
from stripefs.store.base import Status
from stripefs.store.wrappers.striped_seen import is_seen
from stripefs.write.names import Names
from stripefs.write.segments import Base
from stripefs.write.shared import Shared

__all__ = ["Standing"]


class Standing:
    """replaced: the manifest of what stands there until a version takes its place, None where that is not striped.

    continued: the status of the file that what is written goes behind; None where it is the file from its start.
    """

    def __init__(self, shared: Shared, names: Names, replaced: Manifest | None = None) -> None:
        self._shared = shared
        self._effects = shared.effects
        self._names = names
        self.replaced = replaced
        self.continued: Status | None = None
        self.hanging: bytes | None = None
        """What is being renamed onto the name, or was when that was given up: it may yet stand there."""
        self.arrived = False
        """Whether what was given up stands there all the same."""
        self._joining = False  # behind the published file, or that was given up

    def anew(self, replaced: Manifest | None) -> Standing:
        """For what is written from the file's start again."""
        after = Standing(self._shared, self._names, replaced)
        after.hanging, after._joining = self.hanging, self._joining
        return after

    async def replace(self, source: bytes, length: int) -> None:
        """`source`, a hidden file of `length` bytes in the store, becomes the file.

        `replaced` is None afterwards where it did not stand there any more: it may be in use elsewhere. Raises
        StaleVersion where the file that is continued is not there.
        """
        if self.hanging != source:
            await self.take_back()  # it must not come later and take this one's place
        await self._ensure_continued()
        if self.replaced is not None and not await self._is_there(self.replaced):
            self.replaced = None
        self.hanging = source
        await self._decided(self._effects.rename_over(source, self._names.path, length))

    async def join_behind(self, base: Base, source: bytes, length: int) -> None:
        """`source` goes behind the published file in one step. Raises StaleVersion as `replace` does."""
        await self._ensure_continued()
        self._joining = True
        await self._decided(self._effects.concat(base.path, base.length, [(source, length)]))

    async def take_back(self) -> None:
        """Nothing is on its way afterwards: what was has been taken back, or has `arrived`."""
        if self.hanging is not None:
            self.arrived = not await self._effects.withdraw(self.hanging)
            self.hanging = None

    async def settle(self) -> bool:
        """`take_back` as far as that is possible now; whether nothing can come to the name any more. Raises nothing."""
        try:
            await self.take_back()
        except StoreError:
            return False
        return not self._joining

    async def look(self) -> Status:
        """What stands there as readers see it."""
        view, path = self._shared.view, self._names.path
        return await self._effects.call("looking at a version", lambda: view.stat(path))

    async def _decided(self, step: Awaitable[None]) -> None:
        """`step`, after which nothing is on its way, unless it is cut off or the store gives no answer."""
        try:
            await step
        except Transient:
            raise
        except StoreError:
            self.hanging, self._joining = None, False
            raise
        self.hanging, self._joining = None, False
        self.continued = None  # whoever looks knows it again

    async def _ensure_continued(self) -> None:
        """Others may have put another file there, or taken it away. Without ids of files nobody can tell."""
        before = self.continued
        if before is None or not before.file_id:
            return
        try:
            now = await self.look()
            if (now.file_id, now.length) == (before.file_id, before.length):
                return
        except NotFound:
            pass
        raise StaleVersion(f"{self._names.path!r} was replaced or changed by somebody else while it was being written")

    async def _is_there(self, manifest: Manifest) -> bool:
        try:
            return is_seen(await self.look(), manifest)
        except Transient:
            raise
        except StoreError:
            return False
