"""Using a dependency snapshot on a host: its image, mounted read-only at the path that it was installed to.

All jobs of a host that want one snapshot share one mount; the daemon counts the processes that use it, and unmounts it
when the last has ended. Whoever calls this has the turn at the target (`imagefs.deps.target`), so that one of several
that come at once mounts, and the others find it mounted.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

from imagefs import mounts
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Attached, Recording, SharedSnapshot, SnapshotUse
from imagefs.plane import erofs
from imagefs.settings import TreeOptions
from stripefs.errors import MountError, StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings

__all__ = ["PATIENCE", "Used", "check_whole", "release", "use"]

PATIENCE = 30.0
"""Seconds for a store to give the documents of a snapshot: an installation takes hardly longer."""

_TRIES = 3
"""A mount that a daemon which is gone left is taken away once; another may be unmounted by its daemon meanwhile."""

_SOURCE = "deps/"
"""What begins the source of a mount of the tree plane."""


class Used(NamedTuple):
    """A snapshot that is mounted. answered: seconds that the daemon took to answer, before anything was mounted."""

    image: str
    answered: float
    attachment: Attached | SharedSnapshot


def use(
    client: Client, store: StoreSettings, snapshot: SnapshotUse, target: str, recording: Recording, options: TreeOptions
) -> Used | None:
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
            mounts.take_away(target, lazy=True)
            continue
        if isinstance(answer, Attached):
            _mount(client, answer, target, options, snapshot.name)
        return Used(answer.image, answered, answer)
    raise MountError(f"{target} is mounted and unmounted all the time", hint="who else mounts there?")


def release(client: Client, used: Used, target: str) -> None:
    """What `use` has just mounted is not used after all. Raises MountError."""
    if isinstance(used.attachment, Attached):
        mounts.take_away(target, lazy=True)
        client.detach(used.attachment.id)


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
    """Whether a snapshot of this daemon, or of one before it, is what is mounted there."""
    if here.fstype == "erofs":
        metadata = next((one.metadata for one in reversed(erofs.mounted()) if one.path == here.path), "")
        return metadata.startswith(os.path.join(os.path.realpath(client.settings.cache), "metadata/"))
    return here.fstype == "fuse.imagefs" and here.source.startswith(_SOURCE)
