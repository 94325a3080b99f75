"""Images that are mounted for leases: one mount of an image for all of them, lazy or whole, until the last is released.

    RUNTIME/imagefs/pool/DIGEST    the tree of the image, read-only: the lowerdir of whoever holds a lease on it

The daemon mounts here, by a program of its own (`imagefs.daemon.mount_helper`), because the client may be gone when a
lease ends. A lease is of a name and a client, in no process, and lasts until it is released, over restarts of its
client and of the daemon's workers. A mount without leases stays for a minute, for the next container of the image, and
is then unmounted (`imagefs.daemon.shared_mounts`).
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

import trio

from imagefs.daemon import processes
from imagefs.daemon.client import new_identifier
from imagefs.daemon.helpers import run_helper
from imagefs.daemon.protocol import AttachRequest, HeldImage, HoldRequest, Lease, Recording, SnapshotUse, Unusable
from imagefs.daemon.requests import (
    CapabilitiesAnswer,
    CapabilitiesRequest,
    DiscardRequest,
    LeasesAnswer,
    LeasesRequest,
    MountedRequest,
    ReleaseRequest,
    Unserved,
)
from imagefs.daemon.state import Attachment
from imagefs.errors import DamagedObject, FormatError, NoSuchImage, NoSuchSnapshot
from imagefs.format import is_digest
from imagefs.format.trace import DEFAULT_WORKLOAD
from imagefs.settings import DaemonSettings
from stripefs.errors import MountError, StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.daemon.attachments import Attachments

__all__ = ["Leases", "pool_path"]

_log = logging.getLogger(__name__)

_MOUNT_WITHIN = 60.0
"""Seconds that a mount may take: it reads the metadata, which is here."""

_GOING_WITHIN = 20.0
"""Seconds that somebody waits for the end of a mount that is being unmounted."""

_LOOK_EVERY = 0.1


def pool_path(settings: DaemonSettings, image: str) -> str:
    """The mountpoint of the image with that digest for leases. As the kernel spells it."""
    return os.path.join(os.path.realpath(settings.runtime), "imagefs/pool", image)


class Leases:
    """The leases of the daemon with these `settings`, among the attachments of `host`."""

    def __init__(self, settings: DaemonSettings, host: Attachments) -> None:
        self._settings = settings
        self._host = host
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)  # by image: one mounts, others join
        self._configs: dict[str, dict[str, Any]] = {}  # of images that are mounted

    async def tidy(self) -> None:
        """Hide what a daemon that was killed left mounted: nobody knows its leases any more."""
        pool = pool_path(self._settings, "")
        for image in sorted(os.listdir(pool)) if os.path.isdir(pool) else []:
            target = pool_path(self._settings, image)
            async with self._turns[image]:  # a lease may mount it anew meanwhile
                if any(one.mountpoint == target for one in self._host.state.attachments.values()):
                    continue
                try:
                    facts = {"unmount": {"target": target, "remove": True, "lazy": True}}
                    await run_helper("imagefs.daemon.mount_helper", facts, _MOUNT_WITHIN)
                except OSError as error:
                    _log.warning("%s stays: %s", target, error)

    async def capabilities(self, _request: CapabilitiesRequest) -> CapabilitiesAnswer:
        return CapabilitiesAnswer()

    async def hold(self, asked: HoldRequest) -> HeldImage | Unserved:
        """Mount the image and the snapshots above it, or add the lease to those who have them. Asked twice it is one
        lease; snapshots that the later request does not name are let go.

        Raises MountError where the lease is on another image, and what keeps the image from being mounted.
        """
        if os.geteuid() != 0:
            raise MountError("leases need the kernel's EROFS, and that a daemon of root", hint="run it as root")
        if asked.namespace != processes.namespace():
            raise MountError(
                "the daemon runs in another mount namespace, where its mounts are not to be seen",
                hint="start one in this one, with a --runtime of its own",
            )
        try:
            image = await self._host.resolve(asked.store, asked.image)
            attachment = await self._join(asked, asked.store, image)
        except (NoSuchImage, DamagedObject) as error:
            return Unserved("missing" if isinstance(error, NoSuchImage) else "damaged", error.message, error.hint)
        above: list[Attachment] = []
        unusable: list[Unusable] = []
        for one in asked.above:
            try:
                tree = await self._host.resolve_snapshot(one.store, one.key)
                above.append(await self._join(asked, one.store, tree, one.key))
            except StripefsError as error:
                _log.warning("the snapshot %s is not mounted for %s: %s", one.key[:12], asked.lease.name, error)
                unusable.append(Unusable(one.key, _kind(error), str(error)))
        for other in self._with(asked.lease):
            if other is not attachment and other not in above:
                self._drop(other, asked.lease)
        config, trees = await self._config(attachment), tuple(one.mountpoint for one in above)
        return HeldImage(asked.lease, attachment.mountpoint, image, config, trees, tuple(unusable))

    def needs_no_disk(self, asked: HoldRequest) -> bool:
        """Tells whether it names, by its digest, an image that is mounted for leases, and no snapshots."""
        image, attached = asked.image, self._host.state.attachments.values()
        mounted = any(one.pooled and one.image == image and not (one.leaving or one.owner) for one in attached)
        return mounted and not asked.above

    async def _config(self, attachment: Attachment) -> dict[str, Any]:
        """The OCI image config, from memory where another lease got it."""
        found = self._configs.get(attachment.image)
        if found is None:
            found = await self._host.config_of(attachment)
            mounted = {one.image for one in self._host.state.attachments.values()}
            kept = {image: config for image, config in self._configs.items() if image in mounted}
            self._configs = kept | {attachment.image: found}
        return found

    async def _join(self, asked: HoldRequest, store: StoreSettings, image: str, snapshot: str = "") -> Attachment:
        """The mount of an image that the lease is on from now on. snapshot: which it is, if any."""
        async with self._turns[image]:
            if not snapshot:
                self._check_free(asked.lease, image)
            attachment = await self._settled(image)
            if attachment is None:
                attachment = await self._mount(asked, store, image, snapshot)
            elif not any(asked.lease.is_of(one) for one in attachment.leases):
                self._host.change(attachment, leases=[*attachment.leases, asked.lease._asdict()])
                self._host.note_other_use(attachment)
            return attachment

    def _check_free(self, lease: Lease, image: str) -> None:
        """Raises MountError where the lease is on another image."""
        for other in self._with(lease):
            if not other.snapshot and other.mountpoint != pool_path(self._settings, image):
                raise MountError(
                    f"the lease {lease.name} of {lease.client} is on the image {other.image[:12]}",
                    hint="release it first, or choose another name",
                )

    async def release(self, request: ReleaseRequest) -> None:
        """The lease ends, if there is one."""
        for attachment in self._with(request.lease):
            self._drop(attachment, request.lease, lingers=not request.at_once)

    def _drop(self, attachment: Attachment, lease: Lease, *, lingers: bool = True) -> None:
        left = [one for one in attachment.leases if not lease.is_of(one)]
        self._host.change(attachment, leases=left, lingers=lingers)

    async def discard(self, request: DiscardRequest) -> None:
        """The client needs an image no more: its mount does not wait for another lease, and these parts of it go."""
        for attachment in self._host.state.attachments.values():
            if attachment.pooled and attachment.image == request.image and not attachment.leases:
                self._host.change(attachment, lingers=False)
        self._host.upkeep.discard(filter(is_digest, request.parts))

    async def leases(self, request: LeasesRequest) -> LeasesAnswer:
        """The leases of a client, of all where none is named: the image of each, and the snapshots above it."""
        found: dict[tuple[str, str], list[Attachment]] = {}
        leases: dict[tuple[str, str], Lease] = {}
        for attachment in self._host.state.attachments.values():
            for lease in map(Lease.from_json, attachment.leases):
                if request.client in ("", lease.client):
                    found.setdefault((lease.client, lease.name), []).append(attachment)
                    leases[lease.client, lease.name] = lease
        held = []
        for key, attached in found.items():
            above = tuple(one.mountpoint for one in attached if one.snapshot)
            held += [
                HeldImage(leases[key], one.mountpoint, one.image, {}, above) for one in attached if not one.snapshot
            ]
        return LeasesAnswer(tuple(held))

    def _with(self, lease: Lease) -> list[Attachment]:
        attached = self._host.state.attachments.values()
        return [one for one in attached if any(lease.is_of(each) for each in one.leases)]

    async def _settled(self, image: str) -> Attachment | None:
        """The mount of the image that leases may join, None where there is none. Raises MountError."""
        path = pool_path(self._settings, image)

        def found() -> Attachment | None:
            attached = self._host.state.attachments.values()
            return next((one for one in attached if one.pooled and one.mountpoint == path), None)

        with trio.move_on_after(_GOING_WITHIN):
            while (known := found()) is not None and (known.leaving or known.owner):
                await trio.sleep(_LOOK_EVERY)
        if (known := found()) is not None and (known.leaving or known.owner):
            raise MountError(f"{path} is still being unmounted", hint="see what keeps it, and try again")
        return known

    async def _mount(self, asked: HoldRequest, store: StoreSettings, image: str, snapshot: str = "") -> Attachment:
        """Raises MountError with nothing mounted, and what `attach` raises."""
        identifier, path = new_identifier(), pool_path(self._settings, image)
        answer = await self._host.attach(
            AttachRequest(
                identifier,
                store,
                image,
                os.getpid(),  # until it is mounted it belongs to this worker, with which it goes
                processes.began(os.getpid()),
                path,
                asked.namespace,
                asked.timeout,
                Recording(asked.workload or DEFAULT_WORKLOAD),
                shares=True,
                snapshot=SnapshotUse(snapshot) if snapshot else None,
                lease=asked.lease,
                events=asked.events,
            )
        )
        try:
            facts = {
                "target": path,
                "metadata": answer.metadata,
                "devices": [one.path for one in answer.devices],
                "lazy": not all(one.local for one in answer.devices),
                "tree": answer.tree._asdict() if answer.tree is not None else None,
            }
            await run_helper("imagefs.daemon.mount_helper", {"mount": facts}, _MOUNT_WITHIN)
            attachment = self._host.state.attachments.get(identifier)
            if attachment is None:
                raise MountError(f"{path} was let go while it was mounted", hint="ask for the lease again")
        except BaseException as error:
            if (begun := self._host.state.attachments.get(identifier)) is not None:
                self._host.release(begun)
            if isinstance(error, OSError):
                raise MountError(f"the image {image[:12]} cannot be mounted: {error}") from error
            raise
        here = kernel.find_mount(path)
        await self._host.mounted(MountedRequest(identifier, "erofs", here.device if here else ""))
        return attachment


def _kind(error: StripefsError) -> Literal["missing", "damaged", "unavailable"]:
    if isinstance(error, NoSuchSnapshot):
        return "missing"
    return "damaged" if isinstance(error, DamagedObject | FormatError | NoSuchImage) else "unavailable"
