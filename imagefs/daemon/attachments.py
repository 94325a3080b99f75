"""The attachments of a host: images that are attached, served, recorded, prefetched and released.

An *attachment* is one use of an image, by a mount or a container. It keeps the devices of its image open; so do the
handles that the kernel holds on them, which outlive an attachment whose client forgot to unmount. Changes that a
worker's successor must know of are in the journal before they are acted on (`imagefs.daemon.state`); anything else,
such as a recording under way, ends with the worker and says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.daemon import cleanup, processes
from imagefs.daemon.devices import DeviceTree, OpenDevices
from imagefs.daemon.documents import CacheUpkeep, Documents, first_error
from imagefs.daemon.helpers import Sweeper
from imagefs.daemon.leases import Leases
from imagefs.daemon.liveness import LivenessWatch
from imagefs.daemon.lookups import EarlyAnswers, SourceLookup
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.daemon.mount_pool import ClientMounts, MountPool
from imagefs.daemon.protocol import (
    SOURCE,
    Attached,
    AttachedDevice,
    AttachRequest,
    MountedTree,
    holder_json,
    source_digest,
)
from imagefs.daemon.record_and_replay import Sessions
from imagefs.daemon.requests import (
    DetachAnswer,
    DetachRequest,
    MountedRequest,
    NoteAnswer,
    NoteRequest,
    ReadyRequest,
    UnrecordRequest,
)
from imagefs.daemon.shared_mounts import SharedMounts, UseAnswer, finder, image_of, shared_by
from imagefs.daemon.start_events import Moment, identity_of
from imagefs.daemon.state import Attachment, StateJournal, attachment_of
from imagefs.format import is_digest
from imagefs.format.documents import Manifest
from imagefs.repository.snapshots import check_source
from imagefs.settings import DaemonSettings
from stripefs.background import contain, supervise
from stripefs.errors import ConfigError, MountError, ServiceDown, StripefsError
from stripefs.fuse.state_memory import MemoryJournal
from stripefs.settings import StoreSettings, redact

__all__ = ["Attachments"]

_log = logging.getLogger(__name__)


class Attachments:
    """One daemon's images. Everything runs on trio's thread but the calls that block."""

    def __init__(self, settings: DaemonSettings, journal: MemoryJournal) -> None:
        self._settings = settings
        self._journal = StateJournal(journal)
        self.state = self._journal.state
        cache = Path(settings.cache)
        documents = MetadataCache(cache, Path(settings.runtime, "imagefs/documents"))
        self.blocks = BlockStore(
            cache / "blocks",
            limit=settings.cache_size or documents.default_limit(),
            memory=settings.memory,
            io_timeout=settings.io_timeout,
        )
        documents.tidy()  # no other process uses the cache now
        self._documents = Documents(documents, settings.io_timeout)
        self._devices = OpenDevices(self.state, self.blocks, self._documents)
        self._sessions = Sessions(settings, self.blocks, self._documents)
        self._liveness = LivenessWatch(settings, self)
        self._pinned: dict[str, list[BlockDevice]] = {}  # by attachment: those whose local files its mount uses
        self._sweeper = Sweeper(settings)
        self._shared_mounts = SharedMounts(self, Path(settings.cache, "deps/damaged"))
        self.leases = Leases(settings, self)
        self.sources = SourceLookup(self._image_from, self._devices.keep_open)
        self.early_answers = EarlyAnswers(self._resolve, self._devices.keep_open, self._documents_of)
        self.device_tree = DeviceTree(
            self._journal,
            self._devices,
            self._sessions.record_read,
            self._sessions.note_first_byte,
            self._shared_mounts.failed,
            lambda: (self.blocks.cache.limit, self.blocks.cache.used),
        )
        self.upkeep = CacheUpkeep(settings.cache_age, self.blocks, self._documents, self._in_use)
        self.client_mounts = ClientMounts(self)
        self._pool = MountPool(lambda: {one.image for one in self.state.attachments.values()})

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start when what an earlier worker served is served again; until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.blocks.run)
            await nursery.start(self._sessions.run)
            await self._devices.open_devices_of_state()
            await nursery.start(self._liveness.run)
            for attachment in self.state.attachments.values():
                if not attachment.ready and not attachment.unrecorded:
                    self.change(attachment, unrecorded="its worker was replaced")
                self._pinned[attachment.id] = []
                self._liveness.begin(attachment)
                if all(use.index in self._devices.devices for use in attachment.devices):
                    self._resume(attachment)
                else:
                    nursery.start_soon(supervise, f"resuming {attachment.name}", self._resume_later, attachment)
            await contain("looking for what is left of uses", self._sweeper.find, self.state.attachments)
            await nursery.start(self._shared_mounts.run)
            await nursery.start(self.sources.run)
            await nursery.start(self.early_answers.run)
            task_status.started()
            nursery.start_soon(supervise, "removing what is left of uses", self._sweeper.run)
            nursery.start_soon(self._pool.run)
            nursery.start_soon(contain, "removing old records", self._sessions.traces.tidy)
            nursery.start_soon(contain, "loading the clients of stores", self._documents.prepare)
            nursery.start_soon(contain, "unmounting what a killed daemon left", self.leases.tidy)
            nursery.start_soon(self.upkeep.run)
            await contain("offering blocks of other images", self._devices.share_cached_blocks)

    def close(self) -> None:
        self._sessions.close()

    # -- requests ------------------------------------------------------------------------------------------------

    async def attach(self, request: AttachRequest) -> Attached:
        """Bring the image's documents here, serve its devices, and begin what its last starts taught."""
        known = self.state.attachments.get(request.id)
        if known is None:
            return await self._documents.once(("attach", request.id), lambda: self._attach(request))
        source = self._devices.source_of(known)
        manifest = await self._documents.manifest(known.image, source)
        # The worker that was asked first may have died before it had this.
        self._set_metadata(known, await self._documents.metadata(manifest.metadata, source))
        return await self._describe(known, manifest, shares=request.shares)

    async def _attach(self, request: AttachRequest) -> Attached:
        store, name = request.store, request.image
        timeout = request.timeout or self._settings.io_timeout
        processes.must_be_seen(request.owner, request.owner_began)
        with self._devices.keep_open(store):
            with trio.move_on_after(timeout):
                begun, source = Moment(), self._devices.source(store)
                if (look := finder(request)) is not None:
                    digest, offline = await self._documents.resolve(source, name, look)
                else:
                    digest, offline = await self.early_answers.resolve(request.id, store, name)
                manifest = await self._documents.manifest(digest, source)
                if request.snapshot is not None:
                    check_source(request.snapshot.name, manifest)
                    if await self._devices.has_only_base(manifest, source):
                        digest, manifest = manifest.base, await self._documents.manifest(manifest.base, source)
                with self._devices.keep_open(*(one.index for one in manifest.devices)):
                    found = Moment()
                    attachment, answer = await self._fetch_documents(request, digest, manifest, source, offline=offline)
                    self._sessions.resolved(attachment, begun, found)
                    if not offline and not is_digest(name):
                        await self._switch_upstream(attachment)
                    return answer._replace(offline=offline)
            raise ServiceDown(
                f"{redact(store.url)}: no answer within {timeout:g} s",
                hint="see whether the store is up and reachable; --io-timeout sets how long to wait",
            )

    async def _resolve(self, store: StoreSettings, name: str) -> tuple[str, bool]:
        return await self._documents.resolve(self._devices.source(store), name)

    @asynccontextmanager
    async def _documents_of(self, store: StoreSettings, digest: str) -> AsyncIterator[None]:
        """The documents of this image are here, and its devices are open while the context is entered."""
        source = self._devices.source(store)
        manifest = await self._documents.manifest(digest, source)
        indexes = [one.index for one in manifest.devices]
        with self._devices.keep_open(*indexes):
            async with trio.open_nursery() as nursery:
                for index in indexes:
                    nursery.start_soon(self._devices.open, index, source)
                nursery.start_soon(self._documents.metadata, manifest.metadata, source)
            yield

    def _use(self, request: AttachRequest, digest: str, manifest: Manifest) -> Attachment:
        path = str(self._documents.metadata_path(manifest.metadata))
        shared = {"events": identity_of(request.events), **shared_by(request)}
        attachment = attachment_of(request, digest, manifest, path, self._settings.record_seconds, **shared)
        for other in list(self.state.attachments.values()):
            # Its client saw nothing mounted there, so what was is gone, and nobody noticed yet.
            same = (other.mountpoint, other.namespace) == (attachment.mountpoint, attachment.namespace)
            if other.mountpoint and same:
                self.release(other)
        devices = self._devices.devices_of(attachment)
        if request.recording.off:
            attachment.unrecorded = "it was asked not to be"
        else:
            attachment.unrecorded = self._sessions.why_unrecorded(attachment, devices, self.state)
        self._journal.record({"attach": attachment.to_json()})
        attachment = self.state.attachments[attachment.id]
        self._pinned[attachment.id] = [device for device in devices if device.pin()]
        self._liveness.begin(attachment)
        self._shared_mounts.watch(attachment)
        source, typical = self._devices.source_of(attachment), not request.recording.off
        self._sessions.begin(attachment, devices, source, typical=typical)
        _log.info("%s is attached (%s)", attachment.name, digest[:12])
        return attachment

    async def _switch_upstream(self, attachment: Attachment) -> None:
        """Its store has just answered: have devices that are served already come from there too."""
        source = self._devices.source_of(attachment)
        facts = {use.index: {"store": attachment.store, "size": use.size} for use in attachment.devices}
        self._journal.record({"known": facts})
        for device in self._devices.devices_of(attachment):
            (await self.blocks.open(device.digest, device.index, source)).close()

    async def use(self, request: AttachRequest) -> UseAnswer:
        """One more process uses a dependency snapshot (`imagefs.daemon.shared_mounts`)."""
        return await self._shared_mounts.use(request, lambda: self.attach(request))

    async def note_use(self, request: AttachRequest) -> None:
        """So that `imagefs deps gc` spares what is used. A store that cannot be written to is no reason to fail."""
        assert request.snapshot is not None
        known = request.hint if request.hint is not None and is_digest(request.hint.name) else None
        with self._devices.keep_open(request.store):
            await self._documents.note_use(self._devices.source(request.store), request.snapshot.name, known)

    async def note(self, request: NoteRequest) -> NoteAnswer:
        return await self._devices.note(request)

    async def resolve(self, store: StoreSettings, image: str) -> str:
        """The digest of an image. Raises NoSuchImage."""
        if image.startswith(SOURCE):
            return await self._image_from(store, source_digest(image.removeprefix(SOURCE)))
        return await self._devices.resolve(store, image)

    async def resolve_snapshot(self, store: StoreSettings, name: str) -> str:
        """The digest of the image of a dependency snapshot that was made for containers. Raises NoSuchSnapshot,
        NoSuchImage, DamagedObject and FormatError."""
        look = partial(image_of, name=name, target="")
        return await self._devices.resolve(store, f"deps/{name}", look)

    async def _image_from(self, store: StoreSettings, source: str) -> str:
        """The image that was built from the OCI manifest with this digest. Raises NoSuchImage."""
        return await self._devices.resolve(store, SOURCE + source, lambda images: images.by_source(source))

    async def config_of(self, attachment: Attachment) -> dict[str, Any]:
        """The OCI image config."""
        return (await self._documents.manifest(attachment.image, self._devices.source_of(attachment))).config

    def note_other_use(self, attachment: Attachment) -> None:
        """Another start reads from the same mount."""
        self._sessions.note_other_use(use.index for use in attachment.devices)

    async def mounted(self, request: MountedRequest) -> None:
        """Note that a client mounted the image. The attachment lasts as long as the mount."""
        attachment = self.state.attachments.get(request.id)
        if attachment is None:
            raise MountError("the daemon does not know this mount any more", hint="mount the image again")
        self.client_mounts.tell(attachment, attachment.mountpoint, request.device)
        self.confirm_mounted(attachment, request.plane)

    async def ready(self, request: ReadyRequest) -> dict[str, Any]:
        """The start is over: its figures as `status` has them, and its events."""
        for attachment in reversed(self.state.attachments.values()):
            if request.which and request.which in (attachment.id, attachment.mountpoint):
                self.finish(attachment, "ready")
                return {**self._sessions.figures(attachment), **self._end(attachment).to_json()}
        raise ConfigError(f"no image is mounted at {request.which}", hint="imagefs status lists them")

    async def unrecord(self, request: UnrecordRequest) -> None:
        """Reads from now on are no start like others."""
        attachment = self.state.attachments.get(request.id)
        if attachment is not None:
            self.change(attachment, unrecorded=request.why)
            self._sessions.forget(attachment)

    async def detach(self, request: DetachRequest) -> DetachAnswer | None:
        """The use of an attachment has ended, or never began."""
        attachment = self.state.attachments.get(request.id)
        if attachment is None:  # an answer that was lost is asked for again
            return None
        self.finish(attachment, "unmount")
        told = self._end(attachment)
        self.release(attachment)
        return told

    def _end(self, attachment: Attachment) -> DetachAnswer:
        return DetachAnswer(self._sessions.take_events(attachment))

    # -- what is noticed (`imagefs.daemon.liveness`) ------------------------------------------------------------------

    def finish(self, attachment: Attachment, how: str) -> None:
        """Its start is over, if it was not before."""
        if not attachment.ready and attachment.id in self.state.attachments:
            self.change(attachment, ready=True)
            self._sessions.finish(attachment, how)

    def confirm_mounted(self, attachment: Attachment, plane: str) -> None:
        """Note that the image is mounted, and depends no more on the process that mounted it."""
        self.change(attachment, plane=plane, owner=0)

    def change(self, attachment: Attachment, **values: Any) -> None:
        """Let these attributes have other values, for later workers too."""
        self._journal.change(attachment, **values)

    def release(self, attachment: Attachment) -> None:
        """Release the attachment, which is not used any more."""
        self.finish(attachment, "unmount")
        self._sessions.drop(attachment)
        self._liveness.end(attachment)
        self.client_mounts.over(attachment)
        for device in self._pinned.pop(attachment.id, ()):
            device.unpin()
        self._journal.record({"detach": attachment.id})
        self._devices.close_unused()
        self._sweeper.over(attachment.id)
        _log.info("%s is let go", attachment.name)

    def snapshot(self) -> dict[str, Any]:
        return {
            "cache": self._settings.cache,
            "images": [
                {
                    **one.shown_values(),
                    "store": redact(str(one.store["url"])),
                    "holders": [holder_json(holder) for holder in one.holders],
                    "devices": [self._devices.figures(use) for use in one.devices],
                    **self._sessions.figures(one),
                }
                for one in self.state.attachments.values()
            ],
            "starts": self._sessions.snapshot(),
            "blocks": self.blocks.snapshot(),
        }

    async def _describe(self, attachment: Attachment, manifest: Manifest, *, shares: bool) -> Attached:
        """The answer to the client of an attachment. Raises MountError when the attachment was released meanwhile.

        shares: the client copies mounts of others, and lets them copy its own.
        """
        self._check_in_use(attachment)
        devices: list[AttachedDevice] = []
        pinned = {device.digest: device for device in self._pinned[attachment.id]}
        for use in attachment.devices:
            local = use.index in pinned
            path = str(pinned[use.index].path) if local else f"{self._settings.devices}/{use.index}"
            devices.append(AttachedDevice(use.tag, path, local))
        tree: MountedTree | None = None
        if all(device.local for device in devices):
            tree = await self._pool.of(attachment.image, attachment.metadata, [one.path for one in devices])
        elif shares:
            tree = await self.client_mounts.of(attachment)
        self._check_in_use(attachment)
        return Attached(
            attachment.id,
            attachment.image,
            attachment.metadata,
            tuple(devices),
            tree,
            manifest.config,
            offline=False,
            base=attachment.base,
            upper=cleanup.upper_folder(self._settings.cache, attachment.id),
        )

    def _check_in_use(self, attachment: Attachment) -> None:
        if attachment.id not in self.state.attachments:
            raise MountError(
                f"{attachment.name} was let go before it was here",
                hint="its process ended, it was unmounted, or another image is mounted at the same place",
            )

    async def _fetch_documents(
        self, request: AttachRequest, digest: str, manifest: Manifest, source: PackSource, *, offline: bool
    ) -> tuple[Attachment, Attached]:
        """Bring all documents here at once; the use of the image, and what its client is told. The start begins as
        soon as its devices can be served: what is fetched ahead then comes while the metadata is unpacked and checked.
        """
        attachment: Attachment | None = None
        self.upkeep.keep([digest, manifest.metadata.digest, *(device.index for device in manifest.devices)])
        path = self._documents.metadata_path(manifest.metadata)

        async def bring_metadata() -> None:
            nonlocal path
            path = await self._documents.metadata(manifest.metadata, source)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bring_metadata)
                async with trio.open_nursery() as opening:
                    for device in manifest.devices:
                        opening.start_soon(self._devices.open, device.index, source)
                if request.snapshot is not None:  # a start goes on without one, and a job that reads it would not
                    indexes = [device.index for device in manifest.devices]
                    self._shared_mounts.check_undamaged(request.snapshot.name, indexes)
                    if not offline:  # else the client sees whether all of it is here
                        nursery.start_soon(self._devices.check_packs, indexes, source)
                attachment = self._use(request, digest, manifest)
            self._set_metadata(attachment, path)
            answer = await self._describe(attachment, manifest, shares=request.shares)
        except BaseException as error:
            if attachment is not None and attachment.id in self.state.attachments:
                self._sessions.drop(attachment)  # of what was no start no trace is made
                self.release(attachment)
            if isinstance(error, BaseExceptionGroup):
                raise first_error(error) from None
            raise
        return attachment, answer

    def _set_metadata(self, attachment: Attachment, metadata: Path) -> None:
        """The metadata of its image lies there: elsewhere than expected where the disk was full."""
        if attachment.metadata != str(metadata):
            self.change(attachment, metadata=str(metadata))

    def _resume(self, attachment: Attachment) -> None:
        devices = self._devices.devices_of(attachment)
        self._pinned[attachment.id] = [device for device in devices if device.pin()]
        self._sessions.resume(attachment, devices, self._devices.source_of(attachment))

    async def _resume_later(self, attachment: Attachment) -> None:
        try:
            for use in attachment.devices:
                await self._devices.open_again(use.index)
        except StripefsError as error:
            _log.warning("%s is only served as it is read: %s", attachment.name, error)
        else:
            if attachment.id in self.state.attachments:
                self._resume(attachment)

    def _in_use(self) -> set[str]:
        """Names of documents and devices that somebody needs."""
        attached = self.state.attachments.values()
        in_use = {name for one in attached for name in (one.image, one.base, os.path.basename(one.metadata))}
        return in_use | self.state.known.keys() | self._devices.devices.keys()
