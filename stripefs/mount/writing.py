"""What the worker of a mount that can be written has beside its tree: drafts, staging, graves; their start and end."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import trio

from stripefs.read import Reader
from stripefs.settings import Settings, WriteSettings, default_write_memory
from stripefs.store.wrappers.striped import StripedStore
from stripefs.tree import State
from stripefs.tree.writes import WritableTree
from stripefs.write import Drafts, Layout, WritePolicy
from stripefs.write.graves import Graves
from stripefs.write.staging import Staging
from stripefs.write.vacate import vacate

__all__ = ["Writing"]

_log = logging.getLogger(__name__)

_LAST_WORK = 4.0
"""Seconds after an unmount for files whose last handle closed with it. The supervisor waits for 5."""


class Writing:
    """`store` is the view of striped files. owner: stays the same for all workers of a mount, and is no other's."""

    def __init__(self, store: StripedStore, settings: Settings, owner: str) -> None:
        wanted = settings.write
        self._settings = settings
        self._store = store
        self._graves = Graves(store.inner, wanted.grace, store.pool)
        self._drafts = Drafts(store, _policy(wanted, settings.read.io_timeout), bury=self._graves.bury, owner=owner)
        self._staging: Staging | None = None
        if wanted.staging:
            self._staging = Staging(wanted.staging, wanted.staging_size, settings.mount.mountpoint)

    def status(self) -> dict[str, Any]:
        staging = self._staging
        staged = {"staged_bytes": staging.used, "staging_size": staging.size} if staging is not None else {}
        return {**self._drafts.status(), **staged, "buried_versions": len(self._graves)}

    async def run(
        self,
        reader: Reader,
        state: State,
        options: dict[str, Any],
        *,
        task_status: trio.TaskStatus[WritableTree] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start with the tree; until cancelled. Then what its writers have finished is published, the rest dropped."""
        stop = trio.Event()
        async with trio.open_nursery() as outer:
            outer.start_soon(_tell_of_cancellation, stop)
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._drafts.run)
                    nursery.start_soon(self._graves.run)
                    tree = self._make_tree(reader, state, options)
                    task_status.started(tree)
                    await stop.wait()
                    with trio.move_on_after(_LAST_WORK):
                        await tree.aclose()
                        await self._drafts.aclose()
                        await self._graves.settle()
                    nursery.cancel_scope.cancel()
        if self._staging is not None:
            self._staging.close()

    def _make_tree(self, reader: Reader, state: State, options: dict[str, Any]) -> WritableTree:
        return WritableTree(
            self._store,
            reader,
            state=state,
            drafts=self._drafts,
            staging=self._staging,
            layout_of=lambda path: Layout(self._settings.write.layout_of(path)),
            bury=self._graves.bury,
            versions=self._versions,
            below=self._store.inner,
            vacate=self._vacate,
            **options,
        )

    def _vacate(self, folder: bytes) -> None:
        vacate(self._store.inner, self._store, folder, self._drafts.versions)

    def _versions(self, path: bytes) -> Iterable[str]:
        manifest = self._store.manifest(path)
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
