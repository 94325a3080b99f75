"""Write backend of the worker of a mount that can be written: its write session and its staging directory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio

from stripefs.assembly import AssembledStore
from stripefs.settings import Settings
from stripefs.vfs import Tree
from stripefs.vfs.read_handles import UnpublishedNames
from stripefs.vfs.writable_tree import WritableTree
from stripefs.vfs.write_handle import WriteHandles
from stripefs.vfs.writer_process import sees_all_processes
from stripefs.write.staging import Staging
from stripefs.write_session import WriteSession

__all__ = ["WriteBackend"]

_log = logging.getLogger(__name__)


class WriteBackend:
    """owner: stays the same for all workers of a mount, and is no other's."""

    def __init__(self, source: AssembledStore, settings: Settings, owner: str) -> None:
        wanted = settings.write
        self._session = WriteSession(source, settings, owner)
        self._handles = WriteHandles()
        self._staging: Staging | None = None
        if wanted.staging:
            self._staging = Staging(wanted.staging, wanted.staging_size, settings.mount.mountpoint)

    @property
    def memory(self) -> int:
        """Bytes that are in memory on their way to the store."""
        return self._session.uploads.memory

    @property
    def open_files(self) -> int:
        """Files that are being written."""
        return len(self._handles)

    def status(self) -> dict[str, Any]:
        staging = self._staging
        staged = {"staged_bytes": staging.used, "staging_size": staging.size} if staging is not None else {}
        return {**self._session.status(), **staged}

    async def run(
        self, make_tree: Callable[..., Tree], *, task_status: trio.TaskStatus[WritableTree] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start with the tree; until cancelled. Then finished files are published and the rest dropped.

        make_tree: makes the tree that can be read, and takes its `unpublished`.
        """
        tree = self._make_writable(make_tree)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._session.run, tree.aclose)
            task_status.started(tree)
        if self._staging is not None:
            self._staging.close()

    def _make_writable(self, make_tree: Callable[..., Tree]) -> WritableTree:
        session = self._session
        if not sees_all_processes():
            _log.info(
                "writers of other PID namespaces are not seen here: closing publishes their files as "
                "--publish-unseen=%s says",
                session.wanted.publish_unseen,
            )
        return WritableTree(
            make_tree(unpublished=UnpublishedNames(session.store, self._handles)),
            self._handles,
            session.uploads,
            staging=self._staging,
            layout_of=session.layout_of,
            publish_unseen=session.wanted.publish_unseen,
            schedule_delete=session.deletions.schedule,
            versions=session.versions,
            below=session.store.inner,
            clear=session.clear_directory,
        )
