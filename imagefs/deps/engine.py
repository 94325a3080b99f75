"""The engine of a start with a snapshot: hit, wait for another host, or install and publish; and the mount of a hit.

    the store has a snapshot           hit: it is used
    another host is installing         wait for what it publishes, then a hit
    nothing                            miss: install, go on, publish in the background

`imagefs.deps.host` does this for a directory of a host, `imagefs.deps.container` for a container.

On a host the image of a snapshot is mounted read-only at the path that it was installed to. All jobs of a host that
want one snapshot share one mount; the daemon counts the processes that use it, and unmounts it when the last has ended.
The process that mounts has the turn at the target (`imagefs.deps.target`), so that one of several that come at once
mounts, and the others find it mounted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imagefs import mounts
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Attached, Recording, SharedSnapshot, SnapshotUse
from imagefs.deps import publications
from imagefs.errors import DamagedBlock, DamagedObject
from imagefs.format.documents import SHORT
from imagefs.plane import erofs
from imagefs.settings import TreeOptions
from imagefs.startup.emission import events
from stripefs.errors import MountError, NotFound, StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings, redact

if TYPE_CHECKING:
    from imagefs.containers import AttachedImage
    from imagefs.deps.lease import InstallLease
    from imagefs.run.container import MountLayer

__all__ = [
    "CHANGED",
    "PATIENCE",
    "AttachedLayer",
    "Miss",
    "MountedSnapshot",
    "absent",
    "attach_above",
    "check_whole",
    "hit_or_install",
    "missed",
    "mount_snapshot",
    "record_hit",
    "release",
]

CHANGED = "what it is installed from was changed meanwhile"
"""The reason for not publishing something: nobody knows what the installer read."""

_SOURCE = "deps/"
"""The beginning of the source of a mount of the tree plane."""

_T = TypeVar("_T")


class Miss(NamedTuple):
    """The reason for a miss. absent: maybe because the store has no such snapshot, or a broken one, so one may be
    published. mountable: whether one that another host publishes would be of use here. damaged: the store has one, of
    which this host could not read a block."""

    reason: str
    absent: bool
    mountable: bool = True
    damaged: bool = False


def missed(error: Exception) -> Miss:
    """For something that kept a snapshot from being used."""
    # The store itself may have to be made. One who has the lead sees whether a damaged snapshot is damaged for others
    # too. Where nothing can be mounted, nobody has asked the store.
    unmountable = isinstance(error, MountError)
    broken = isinstance(error, NotFound | DamagedObject)
    return Miss(
        str(error), absent=unmountable or broken, mountable=not unmountable, damaged=isinstance(error, DamagedBlock)
    )


def absent(store: StoreSettings, cache: str, name: str) -> Miss:
    """For a store that has no snapshot of this name; why, where this host tried to publish it."""
    last = publications.last_outcome(cache, name)
    tried = f" (not published the last time: {last.lines[0]})" if last and not last.published and last.lines else ""
    return Miss(f"{redact(store.url)} has no such snapshot{tried}", absent=True)


class AttachedLayer(NamedTuple):
    """A snapshot above the image of a container. answered: seconds that the daemon took to answer."""

    layer: MountLayer
    answered: float


def attach_above(
    image: AttachedImage,
    store: StoreSettings,
    name: str,
    attach: Callable[[], Attached | None],
    used: contextlib.ExitStack,
    attached: Callable[[], None] = lambda: None,
) -> AttachedLayer | Miss:
    """Attach the snapshot of this name as a layer above `image`, until `used` ends. attach: answers with the snapshot,
    None where the store has none. attached: called once it is attached."""
    from imagefs import containers  # which the caller has loaded

    try:
        begun = time.monotonic()
        found = attach()
        answered = time.monotonic() - begun
        if found is None:
            return absent(store, image.client.settings.cache, name)
        used.callback(containers.release, image.client, found)
        attached()
        check_whole(found)
        layer = used.enter_context(containers.layer_of(image.client, found, image.tree, f"{_SOURCE}{name}"))
    except (StripefsError, OSError) as error:
        return missed(error)
    return AttachedLayer(layer, answered)


def hit_or_install(
    store: StoreSettings,
    name: str,
    patience: float,
    hit: Callable[[], _T | Miss],
    install: Callable[[str, InstallLease | None], _T],
    tell: Callable[[str], None],
) -> _T:
    """The result of `hit`, or of `install` for the reason that it is given; it publishes where it has the lead.

    patience: seconds to wait for another host that installs the same. Raises what these two raise.
    """
    found = record_hit(name, hit)
    if not isinstance(found, Miss):
        return found
    events().instant("dependencies", "miss", key=name)
    if not found.absent:
        return install(found.reason, None)
    from imagefs.deps.lease import InstallLease  # not needed by most, who find what they want

    waits = contextlib.ExitStack()

    def waiting(who: str) -> None:
        told: dict[str, Any] = {"cause": "lease", "key": name} | ({"host": who} if who else {})
        waits.enter_context(events().begin("dependencies", "wait", kind="wait", **told))
        tell(f"miss {name[:SHORT]}: waiting for what another host installs{f' ({who})' if who else ''}")

    with waits:
        lease = InstallLease(store, name, patience if found.mountable else 0.0, waiting, damaged=found.damaged)
    with lease:
        if not lease.published:
            return install(f"{found.reason}{lease.remark}", lease)
        again = record_hit(name, hit) if found.mountable else found
        return install(again.reason, None) if isinstance(again, Miss) else again


def record_hit(name: str, hit: Callable[[], _T | Miss]) -> _T | Miss:
    """The result of `hit`; a hit, and the time that it took, are events."""
    begun = time.monotonic()
    found = hit()
    if not isinstance(found, Miss):
        events().begin("dependencies", "mount", ago=time.monotonic() - begun, key=name).end()
        events().instant("dependencies", "hit", key=name)
    return found


PATIENCE = 30.0
"""Seconds for a store to give the documents of a snapshot: an installation takes hardly longer."""

_TRIES = 3
"""A mount that a daemon which is gone left is taken away once; another may be unmounted by its daemon meanwhile."""


class MountedSnapshot(NamedTuple):
    """A snapshot that is mounted. answered: seconds that the daemon took to answer, before anything was mounted."""

    image: str
    answered: float
    attachment: Attached | SharedSnapshot


def mount_snapshot(
    client: Client, store: StoreSettings, snapshot: SnapshotUse, target: str, recording: Recording, options: TreeOptions
) -> MountedSnapshot | None:
    """Have the snapshot at `target`, an empty directory or where it is mounted already; None where there is none.

    Raises MountError and what the daemon says went wrong, with nothing mounted that was not before: a document or
    metadata that fails its check, a store that is away, another snapshot at that place.
    """
    for _ in range(_TRIES):
        here = kernel.find_mount(target)
        mounted = here is not None and _is_ours(client, here)
        begun = time.monotonic()
        answer = client.use(store, snapshot, recording, mountpoint=target, mounted=mounted, timeout=PATIENCE)
        answered = time.monotonic() - begun
        if answer is None:
            return None
        if answer == "stale":
            mounts.unmount_topmost(target, lazy=True)
            continue
        if isinstance(answer, Attached):
            _mount(client, answer, target, options, snapshot.name)
        return MountedSnapshot(answer.image, answered, answer)
    raise MountError(f"{target} is mounted and unmounted all the time", hint="who else mounts there?")


def release(client: Client, mounted: MountedSnapshot, target: str) -> None:
    """Release what `mount_snapshot` has just mounted, which is not used after all. Raises MountError."""
    if isinstance(mounted.attachment, Attached):
        mounts.unmount_topmost(target, lazy=True)
        client.detach(mounted.attachment.id)


def check_whole(attached: Attached) -> None:
    """Raise MountError for a snapshot of which something lacks here that nobody can bring."""
    if attached.offline and not all(device.local for device in attached.devices):
        raise MountError("the store is away, and not all of the snapshot is here", hint="see whether it is up")


def _mount(client: Client, attached: Attached, target: str, options: TreeOptions, name: str) -> None:
    try:
        check_whole(attached)
        if os.listdir(target):
            raise MountError(f"{target} is not empty", hint="the mount would hide its files")
    except BaseException:
        with contextlib.suppress(StripefsError):  # that error is the one to tell
            client.detach(attached.id)
        raise
    mounts.mount_attached(client, attached, target, options._replace(confined=True), name=_SOURCE + name)


def _is_ours(client: Client, here: kernel.MountPoint) -> bool:
    """Tells whether a snapshot of this daemon, or of one before it, is what is mounted there."""
    if here.fstype == "erofs":
        metadata = next((one.metadata for one in reversed(erofs.mounted()) if one.path == here.path), "")
        return metadata.startswith(os.path.join(os.path.realpath(client.settings.cache), "metadata/"))
    return here.fstype == "fuse.imagefs" and here.source.startswith(_SOURCE)
