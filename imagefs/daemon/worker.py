"""The worker of the daemon: the host's images, served by `stripefs.fuse.worker`."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from imagefs.daemon import requests
from imagefs.daemon.attachments import Attachments
from imagefs.daemon.protocol import AttachRequest, HeldImage, HoldRequest
from imagefs.daemon.requests import Unserved, typed
from imagefs.settings import DaemonSettings
from stripefs.errors import ConfigError, ServiceDown
from stripefs.executor import Lane
from stripefs.fuse import worker
from stripefs.fuse.control_server import Request
from stripefs.fuse.protocol import ServedTree
from stripefs.fuse.state_memory import MemoryJournal
from stripefs.store.allocator import bound_allocator

__all__ = ["DaemonBackend"]

_log = logging.getLogger(__name__)


_ANSWERS_WITHIN = 5.0
"""Seconds for the cache's disk to say that its folder is there."""


class DaemonBackend:
    """All images that are attached to the daemon of one runtime folder."""

    source = "imagefs"
    kept: Mapping[str, Any] = {}
    open_writes = 0

    def __init__(self, start: worker.Start) -> None:
        self._settings = DaemonSettings.from_json(start.payload)
        self._start = start
        self._disk = Lane("the cache folder", 2)
        self._host: Attachments

    @property
    def requests(self) -> Mapping[str, Request]:
        host = self._host
        return {
            "announce": typed(requests.AnnounceRequest, host.early_answers.announce),
            "attach": typed(AttachRequest, self._attach),
            "use": typed(AttachRequest, self._use),
            "note": typed(requests.NoteRequest, host.note),
            "unrecord": typed(requests.UnrecordRequest, host.unrecord),
            "mounted": typed(requests.MountedRequest, host.mounted),
            "shown": typed(requests.ShownRequest, host.client_mounts.shown),
            "ready": typed(requests.ReadyRequest, host.ready),
            "detach": typed(requests.DetachRequest, host.detach),
            "find": typed(requests.FindRequest, host.sources.find),
            "usage": typed(requests.UsageRequest, host.upkeep.usage),
            "hold": typed(HoldRequest, self._hold),
            "release": typed(requests.ReleaseRequest, host.leases.release),
            "leases": typed(requests.LeasesRequest, host.leases.leases),
            "discard": typed(requests.DiscardRequest, host.leases.discard),
            "capabilities": typed(requests.CapabilitiesRequest, host.leases.capabilities),
        }

    async def open(self) -> None:
        # Two descriptors for each device that was ever fetched, one for each pack that is read: 1024 are few.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        bound_allocator()
        cache = Path(self._settings.cache)
        try:
            self._host = await self._disk.run(
                f"opening the cache {cache}", _host, cache, self._settings, self._start.journal,
                timeout=self._settings.io_timeout,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(
                f"the cache {cache} cannot be used: {error.strerror}", hint="name another folder by --cache"
            ) from error

    async def run(self, *, task_status: trio.TaskStatus[ServedTree]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._host.run)
            task_status.started(self._host.device_tree)

    async def _attach(self, request: AttachRequest) -> dict[str, Any]:
        await self._need_cache()
        return {**(await self._host.attach(request)).to_json(), "settings": self._settings._asdict()}

    async def _use(self, request: AttachRequest) -> dict[str, Any]:
        await self._need_cache()
        return {**(await self._host.use(request)).to_json(), "settings": self._settings._asdict()}

    async def _hold(self, request: HoldRequest) -> HeldImage | Unserved:
        if not self._host.leases.needs_no_disk(request):
            await self._need_cache()
        return await self._host.leases.hold(request)

    async def _need_cache(self) -> None:
        """End where somebody has removed the cache: the next worker makes it and its lock anew, and is asked again.

        A disk that does not answer says nothing.
        """
        folder = self._host.blocks.folder
        try:
            there = await self._disk.run(f"looking for {folder}", folder.is_dir, timeout=_ANSWERS_WITHIN)
        except ServiceDown as error:
            _log.warning("%s", error)
            return
        if not there:
            _log.error("the cache %s was removed: another worker makes it anew", self._settings.cache)
            logging.shutdown()
            os._exit(1)

    def status(self) -> dict[str, Any]:
        return self._host.snapshot()

    def metrics(self, status: Mapping[str, Any]) -> str:
        from imagefs.metrics import render

        return render(status)

    def close(self) -> None:
        self._host.close()


def _host(cache: Path, settings: DaemonSettings, journal: MemoryJournal) -> Attachments:
    """Raises OSError, ConfigError."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Attachments(settings, journal)


if __name__ == "__main__":
    worker.main(DaemonBackend)
