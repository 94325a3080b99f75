"""All uploads of one mount: their memory, the tasks that send parts, and the heartbeat that renews their locks.

Every third of a lease one lock reads the store's clock, and all others take its reading. Their renewals run at once, on
the threads of one lane. For n files a beat makes 2n + 4 calls to the store: each lock's time is set and the lock looked
at, and the first one is compared and its clock read before, by a file that is put, looked at and removed. When each
lock read the clock by itself, n files took 6n calls.

The locks stay one a file, each with a time of its own, because programs of every version, `gc` and `recover` among
them, see in a listing if a lock lives. A lock that points to one lease of its mount would look dead, after a minute, to
those that know only locks with times of their own, and they would take a living writer's file. A lock dated far into
the future would outlive its writer for them.

Failure: a reading that fails, or takes longer than a sixth of the lease, is replaced by the last one that worked and
the time that has passed since, and another lock reads at the next beat. A renewal that hangs is given up after a third
of the lease and holds up neither other renewals nor the next beat.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

import trio

from stripefs.background import contain, supervise
from stripefs.errors import Busy, Exists, NotFound, Unsupported
from stripefs.executor import retry_task
from stripefs.format.lock_and_record import LEASE
from stripefs.format.reserved_names import new_version
from stripefs.retry import RetryPolicy
from stripefs.store.base import Attributes, Identity, Store
from stripefs.units import shown
from stripefs.write.directory_layout import QuotaDirectories
from stripefs.write.file_lock import FileLock
from stripefs.write.layout_policy import Layout, WritePolicy
from stripefs.write.namespace import find_writer, find_writer_below
from stripefs.write.store_ops import ClockReading
from stripefs.write.upload import FileUpload
from stripefs.write.upload_context import ObserverFactory, UploadContext, no_observer
from stripefs.write.upload_locks import UploadLocks
from stripefs.write.upload_names import UploadNames, split_path

__all__ = ["Heartbeat", "UploadManager"]


class Heartbeat:
    """One a mount, on trio's thread. writers: all that are open now. seconds: of the lease."""

    def __init__(self, writers: Callable[[], Iterable[FileUpload]], seconds: float) -> None:
        self._writers = writers
        self._seconds = seconds
        self._beats = 0
        self._renewing: set[FileUpload] = set()
        self._reading: ClockReading | None = None

    async def run(self, before: Callable[[], object]) -> None:
        """Beat until cancelled. before(): called with each beat, first of all, while there are writers."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._seconds / 3)
                if any(True for _ in self._writers()):
                    before()
                    nursery.start_soon(contain, "renewing locks", self.beat)

    async def beat(self) -> None:
        """Renew all locks once, but for those that the last beat is still at."""
        writers = [writer for writer in self._writers() if writer not in self._renewing]
        if not writers:
            return
        self._beats += 1
        first = writers.pop(self._beats % len(writers))
        self._renewing.update(writers)  # they have their turn in this beat
        try:
            await self._renew(first, None, self._seconds / 6)
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    nursery.start_soon(self._renew, writer, self._reading, self._seconds / 3)
        finally:
            self._renewing.difference_update(writers)

    async def _renew(self, writer: FileUpload, reading: ClockReading | None, timeout: float) -> None:
        """One that fails concerns its writer alone."""

        async def renew() -> None:
            self._reading = await writer.renew(reading, timeout) or self._reading

        self._renewing.add(writer)
        try:
            await contain(f"renewing the lock of {writer.path!r}", renew)
        finally:
            self._renewing.discard(writer)


_log = logging.getLogger(__name__)

SPARE = 0.1
"""Seconds for which the lock of a file that was closed waits for the next file of its directory: a program that writes
one file after the other opens it within milliseconds. Other mounts wait for twice as long before they say Busy."""

CLOSING = 5.0
"""Seconds for giving up what is open when a mount ends."""


class UploadManager:
    """One a mount. `run` must be running (in the worker's nursery) while any upload is used.

    store: the view in which a striped file is ONE file (`StripedStore`) or any other; writes go to the store below
    it. schedule_delete(versions, pool): called after a publication with the striped versions that it replaced. owner:
    names the mount, the same for all its workers, so that the locks of a dead one do not hinder the next; no `/`.
    observers: makes the observers of files' bytes while they are written. lease: seconds, the same for all who write to
    this store.
    """

    def __init__(
        self,
        store: Store,
        policy: WritePolicy,
        *,
        schedule_delete: Callable[[Iterable[str], bytes], None] | None = None,
        owner: str = "",
        observers: ObserverFactory = no_observer,
        lease: float = LEASE,
    ) -> None:
        self._lease = lease
        self._owner = owner or new_version()
        self._shared = UploadContext(store, policy, schedule_delete, observers)
        self._quotas = QuotaDirectories(self._shared.store)
        self._uploads: dict[bytes, FileUpload | None] = {}
        self._all: set[FileUpload] = set()
        self.heartbeat = Heartbeat(lambda: self._all, lease)
        self._spares: dict[bytes, FileLock] = {}  # of files that are closed, by their paths
        self._unresolved: dict[bytes, tuple[FileUpload, float]] = {}
        """Uploads given up that may yet be published, by their path, and until when their locks stay."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sends parts and renews leases until cancelled. `await nursery.start(manager.run)`.

        Open uploads are given up then, for CLOSING seconds at most: locks that stay would hinder the next mount.
        """
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._shared.uploader.run)
                self._shared.nursery = nursery

                def look() -> None:
                    nursery.start_soon(contain, "asking for the data hosts", self._shared.uploader.look)

                nursery.start_soon(supervise, "renewing locks", self.heartbeat.run, look)
                task_status.started()
        finally:
            self._shared.nursery = None
            with trio.move_on_after(CLOSING):
                await self.aclose()

    async def begin(
        self,
        path: bytes,
        *,
        replacing: Identity | None,
        append: bool = False,
        attributes: Attributes | None = None,
        layout: Layout | None = None,
        anew: bool = False,
    ) -> FileUpload:
        """Begin a new version of the file at `path` (`replacing`: the identity of the one that was seen there).

        Takes the lock of `path`. append: the new version begins with the bytes of the one it replaces, and
        `upload.length` starts at its length. attributes: mode, owner, group, times that the published file gets.
        layout: None is the policy's. anew: with `replacing` None, a file that came to the name meanwhile is replaced,
        as O_TRUNC of open(2) cuts it, so nobody looks for one. Nothing is visible before `FileUpload.publish`. A
        directory must exist above.

        Raises Busy (another writer, here or elsewhere), Exists (`replacing` is None without `anew`, and something came
        to the name before the lock was held), NotFound (no directory), Unsupported (append where the store cannot),
        StoreError.
        """
        if not self._shared.store.capabilities.put:
            raise Unsupported(f"{self._shared.store.url} cannot be written to")
        if path in self._uploads:
            raise Busy(f"{path!r} is being written through this mount already")
        self._uploads[path] = None
        try:
            await self._ensure_resolved(path)
            layout = layout or self._shared.policy.layout
            upload = await self._begin(path, replacing, append, attributes or Attributes(), layout, anew)
        except BaseException:
            del self._uploads[path]
            raise
        self._uploads[path] = upload
        return upload

    async def _ensure_resolved(self, path: bytes) -> None:
        """Raises Busy where the lock stays for what may yet come: `acquire` would take its writer for dead."""
        upload, until = self._unresolved.get(path, (None, 0.0))
        if upload is None:
            return
        if trio.current_time() < until:
            await upload.resolve()
            if not upload.resolved:
                raise Busy(f"{path!r} may yet be published as it was written last")
        del self._unresolved[path]

    async def _begin(
        self, path: bytes, replacing: Identity | None, append: bool, attributes: Attributes, layout: Layout, anew: bool
    ) -> FileUpload:
        shared = self._shared
        await shared.uploader.look()
        names = UploadNames(path)
        layout = await self._allowed(path, layout)
        locks = await self._lock(path, names.version)
        try:
            if replacing is None and not anew:
                await self._ensure_absent(path)
            manifest = await shared.manifest(path) if replacing is not None else None
            alone = replacing is None
            upload = FileUpload(shared, locks, names, layout, attributes, manifest, self, alone=alone, anew=anew)
        except BaseException:
            await locks.release_name()
            raise
        self._all.add(upload)
        if append:
            try:
                status = await shared.ops.call("looking at what is continued", partial(shared.view.stat, path))
                await upload.continue_file(status, manifest)
            except BaseException:
                await upload.abandon()
                raise
        return upload

    async def _allowed(self, path: bytes, layout: Layout) -> Layout:
        """Parts in the pool would escape a directory's quota."""
        if layout is not Layout.STRIPED:
            return layout
        look = partial(self._quotas.binding, path)
        return Layout.CONCAT if await self._shared.ops.call("looking for a quota", look) else layout

    async def _ensure_absent(self, path: bytes) -> None:
        """Raises Exists. The caller looked before it had the lock, and another writer may have published since."""
        store = self._shared.store
        try:
            await self._shared.ops.call("looking for a file of this name", partial(store.stat, path))
        except NotFound:
            return
        raise Exists(f"{path!r} exists")

    async def _lock(self, path: bytes, version: str) -> UploadLocks:
        shared = self._shared
        locks = UploadLocks(shared.store, shared.ops, shared.renewals, self._lease)
        if not shared.store.capabilities.put_if_absent:
            if "lock" not in shared.warned:
                shared.warned.add("lock")
                _log.warning("files are written without locks: the store cannot put a file only where there is none")
        else:
            beside = [of for of in [*self._spares] if split_path(of)[0] == split_path(path)[0]]
            spare = self._spares.pop(path if path in beside else beside[-1], None) if beside else None
            attempt = partial(locks.acquire, path, version, f"{self._owner}/{version}", spare)
            await retry_task(attempt, RetryPolicy(tries=2, first=2 * SPARE, errors=(Busy,)))
        return locks

    def keep_lock(self, lock: FileLock) -> bool:
        """An upload reports that its lock is not needed any more; True where it is kept for the next one."""
        nursery = self._shared.nursery
        if nursery is None or lock.due or not self._shared.store.capabilities.move_document:
            return False
        self._spares[lock.path] = lock

        async def release() -> None:
            await trio.sleep(SPARE)
            await self._shared.ops.call("letting a lock go", self.release_spares, lock.path)

        nursery.start_soon(contain, "letting a lock go", release)
        return True

    def release_spares(self, path: bytes) -> None:
        """Let the locks of closed files go, at `path` or below it. Blocks; raises Transient."""
        for of, lock in [*self._spares.items()]:
            if (of + b"/").startswith(path.rstrip(b"/") + b"/"):
                lock.release()
                if self._spares.get(of) is lock:
                    self._spares.pop(of, None)

    def get(self, path: bytes) -> FileUpload | None:
        """The upload of this mount that writes `path` now."""
        return self._uploads.get(path)

    def writer_below(self, folder: bytes) -> str:
        """The writer of a file below a directory, on any node, as `find_writer_below` tells it. Blocks."""
        return self._other_writer(find_writer_below, folder)

    def writer_of(self, path: bytes) -> str:
        """The writer of the file at `path`, on any node, as `find_writer_below` tells it. Blocks."""
        return self._other_writer(find_writer, path)

    def _other_writer(self, find: Callable[..., str], path: bytes) -> str:
        self.release_spares(path)
        store = self._shared.store
        if not store.capabilities.put_if_absent:
            return ""
        return find(store, path, self._owner, self.versions, seconds=self._lease)

    @property
    def versions(self) -> frozenset[str]:
        """Versions of all open uploads, also of those whose name was removed."""
        return frozenset(version for upload in list(self._all) for version in upload.versions)

    def closed(self, upload: FileUpload) -> None:
        """An upload reports that it is closed."""
        if not upload.resolved and upload in self._all:
            _log.warning("the lock of %r stays until it runs out: it may yet be published", upload.path)
            self._unresolved[upload.path] = (upload, trio.current_time() + self._lease)
        self._all.discard(upload)
        self.detached(upload)

    def detached(self, upload: FileUpload) -> None:
        """An upload reports that it will not be published at its path."""
        for path in [path for path, found in self._uploads.items() if found is upload]:
            del self._uploads[path]

    def moved(self, upload: FileUpload, old: bytes) -> None:
        """An upload reports that its path was `old` and has changed."""
        if self._uploads.get(old) is upload:
            del self._uploads[old]
        self._uploads[upload.path] = upload

    @property
    def busy(self) -> bool:
        """True while an upload is open or begins, or one that was given up may yet be published."""
        now = trio.current_time()
        return bool(self._all or self._uploads) or any(until > now for _, until in self._unresolved.values())

    @property
    def memory(self) -> int:
        """Bytes in memory on their way to the store."""
        return self._shared.budget.used

    def status(self) -> dict[str, object]:
        """Figures for `status` and metrics: sizes in bytes, times in seconds, counts since the start."""
        shared = self._shared
        stats, hosts = shared.stats, shared.uploader.hosts
        return {
            "files": len(self._all),
            "drafts": [
                {
                    "path": shown(upload.path),
                    "layout": upload.layout.value if upload.layout is not None else "",
                    "length": upload.length,
                    "memory": upload.held,
                }
                for upload in self._all
            ],
            "throughput": stats.pace.rate,
            "memory_bytes": self.memory,
            "memory_limit_bytes": shared.budget.limit,
            "memory_waits": shared.budget.waits,
            "memory_waited_seconds": shared.budget.waited,
            "parts_under_way": shared.uploader.in_flight,
            "parts_waiting": shared.uploader.waiting,
            "sent_bytes": hosts.kept_bytes,
            "retries": shared.uploader.retries + shared.ops.retries + shared.renewals.retries,
            "published_versions": stats.published,
            "errors": dict(stats.errors),
            "lost": dict(stats.lost),
            "last_error": stats.last_error,
            "quota_directories": [shown(path) for path in self._quotas.found],
            "hosts": hosts.snapshot(time.monotonic()),
        }

    async def aclose(self) -> None:
        """Abandon what is still open, but for what a record names, and let the locks go."""
        async with trio.open_nursery() as nursery:
            for upload in list(self._all):
                abandon = partial(upload.abandon, recoverable=True)
                nursery.start_soon(contain, f"giving up {upload.path!r}", abandon)
        if self._spares:
            await contain("letting locks go", self._shared.ops.call, "letting locks go", self.release_spares, b"/")
