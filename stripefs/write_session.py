"""Write session of a source, from start to end: its uploads, and the deferred deletion of replaced versions.

A mount with `--rw` has one, and so has a process that writes through `stripefs.open`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from stripefs.assembly import AssembledStore
from stripefs.gc.collect import clear_for_rmdir
from stripefs.gc.deferred_delete import DeferredDelete
from stripefs.settings import Settings, WriteSettings, default_write_memory
from stripefs.write.layout_policy import Layout, WritePolicy
from stripefs.write.session import UploadManager
from stripefs.write.upload_context import no_observer

__all__ = ["WriteSession"]

_LAST_WORK = 4.0
"""Seconds for work that was finished when the end came. The supervisor of a mount waits for 5."""


class WriteSession:
    """owner: names the writer, the same for all workers of a mount, "" for a new one.

    store: the view of striped files.
    """

    def __init__(self, source: AssembledStore, settings: Settings, owner: str = "") -> None:
        self.store = source.view
        self.wanted = settings.write
        self.deletions = DeferredDelete(source.base, self.wanted.grace, self.store.pool)
        cached = source.cached if settings.cache.writes else None
        self.uploads = UploadManager(
            self.store,
            _policy(self.wanted, settings.read.io_timeout),
            schedule_delete=self.deletions.schedule,
            owner=owner,
            observers=no_observer if cached is None else cached.write_observer,
        )

    def status(self) -> dict[str, Any]:
        return {**self.uploads.status(), "buried_versions": len(self.deletions)}

    @property
    def busy(self) -> bool:
        """True while a file is being written, or a replaced version waits for its deletion."""
        return self.uploads.busy or len(self.deletions) > 0

    async def run(
        self,
        last: Callable[[], Awaitable[None]] | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Until cancelled. Then `last`, in which its users publish what they have finished; the rest is dropped."""
        stop = trio.Event()
        async with trio.open_nursery() as outer:
            outer.start_soon(_tell_of_cancellation, stop)
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.uploads.run)
                    nursery.start_soon(self.deletions.run)
                    task_status.started()
                    await stop.wait()
                    with trio.move_on_after(_LAST_WORK):
                        if last is not None:
                            await last()
                        await self.uploads.aclose()
                        await self.deletions.wait_due()
                    nursery.cancel_scope.cancel()

    def layout_of(self, path: bytes) -> Layout:
        """The layout of a new file where no directory above it asks for one."""
        return Layout(self.wanted.layout_of(path))

    def clear_directory(self, folder: bytes) -> None:
        """Remove from `folder` what is hidden in it and nobody's; see `stripefs.gc.collect`. Blocks."""
        self.uploads.release_spares(folder)
        clear_for_rmdir(self.store.inner, self.store, folder, self.uploads.versions)

    def versions(self, path: bytes) -> Iterable[str]:
        """The folders of the pool that the striped file at `path` needs; none for any other. Blocks."""
        manifest = self.store.manifest(path)
        return manifest.versions if manifest is not None else ()


async def _tell_of_cancellation(stop: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


def _policy(wanted: WriteSettings, io_timeout: float) -> WritePolicy:
    return WritePolicy(
        layout=Layout(wanted.layout),
        unit=wanted.unit,
        memory=wanted.memory or default_write_memory(),
        grace=wanted.grace,
        io_timeout=io_timeout,
    )
