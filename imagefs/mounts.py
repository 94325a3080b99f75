"""Mounting images on this host: the kernel's EROFS or the tree plane, one overlay on top where it is to be writable.

The client does this, not the daemon: a daemon that waited for its own devices could never be replaced. A client that is
killed on the way leaves what `imagefs.daemon.cleanup` names, and the daemon removes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator

from imagefs.daemon import cleanup
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Attached, Recording
from imagefs.plane import kernel_mounts
from imagefs.settings import DaemonSettings, TreeOptions, devices_mount
from imagefs.startup.emission import events
from stripefs.errors import ConfigError, MountError, StripefsError
from stripefs.fuse import kernel
from stripefs.osutil import try_flock
from stripefs.settings import MountSettings, StoreSettings

__all__ = [
    "is_ours",
    "mount",
    "mount_attached",
    "resolved",
    "shared_mount",
    "show_attached",
    "show_tree",
    "umount",
    "unmount_topmost",
]

_UPPER = r"/upper/[0-9a-f]{32}$"
_METADATA = r"/metadata/[0-9a-f]{64}\.erofs( \(deleted\))?$"


def mount(
    client: Client, store: StoreSettings, image: str, target: str, options: TreeOptions, recording: Recording
) -> tuple[Attached, str]:
    """Mount the image of this tag or digest at `target`; the plane that shows it. Nothing is left behind on failure."""
    with _reserved(target) as path, events().begin("image", "attach", image=image, mount=path) as span:
        attached = client.attach(
            store, image, recording, owner=os.getpid(), mountpoint=path, shares=options.shares, span=span.id
        )
        plane = mount_attached(client, attached, path, options, name=image)
        span.end(image=attached.image)
    return attached, plane


def mount_attached(client: Client, attached: Attached, path: str, options: TreeOptions, *, name: str) -> str:
    """Mount what was attached for `path`, an empty directory, and tell the daemon; the plane that shows it.

    On failure it is detached, and nothing is left behind.
    """
    try:
        with copied(attached, options) as copy:
            plane = show_attached(attached, path, options, client.settings, name=name, copy=copy)
        try:
            here = kernel.find_mount(path) if options.shares else None
            client.mounted(attached, plane, here.device if here is not None and here.fstype == "erofs" else "")
        except BaseException:
            unmount_topmost(path, lazy=True)
            _remove(attached.upper)
            raise
    except BaseException:
        with contextlib.suppress(StripefsError):  # that error is the one to tell; the daemon notices by itself
            client.detach(attached.id)
        raise
    return plane


@contextlib.contextmanager
def copied(attached: Attached, options: TreeOptions) -> Iterator[int]:
    """A descriptor for the `copy` of `show_attached`: a mount of what is mounted already; -1 where there is none.

    The process that has the mount can only be found in its own PID namespace.
    """
    descriptor = -1
    if attached.tree is not None and options.shares:
        with contextlib.suppress(OSError):  # it has just gone, or we may not look
            descriptor = kernel_mounts.copy(*attached.tree)
    try:
        yield descriptor
    finally:
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def shared_mount(client: Client, attached: Attached, options: TreeOptions) -> Iterator[int]:
    """As `copied`, for a client that lives as long as its mount: others copy a lazy image's from it meanwhile."""
    if not options.shares or all(device.local for device in attached.devices):
        with copied(attached, options) as copy:
            yield copy
        return
    copy, path, device = -1, "", ""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # the kernel is too old, or cannot take the files: it is mounted alone
            mount = _copied_or_made(attached)
            held.callback(os.close, mount)
            device = kernel_mounts.device_of(mount)
            copy = kernel_mounts.copy(f"/proc/self/fd/{mount}", device)
            held.callback(os.close, copy)
            path = f"/proc/{os.getpid()}/fd/{mount}"
        with contextlib.suppress(StripefsError):  # others then wait in vain for a moment
            client.shown(attached, path, device)
        yield copy


def _copied_or_made(attached: Attached) -> int:
    """Raises OSError."""
    if attached.tree is not None:
        with contextlib.suppress(OSError):  # it has just gone
            return kernel_mounts.copy(*attached.tree)
    from imagefs.plane import erofs

    with erofs.lazy_read_ahead():
        return kernel_mounts.make(attached.metadata, [one.path for one in attached.devices])


def show_attached(
    attached: Attached, target: str, options: TreeOptions, settings: DaemonSettings, *, name: str, copy: int = -1
) -> str:
    """Show an attached image at `target`, an empty directory; the plane. Raises MountError with nothing mounted."""
    if not options.rw:
        return _show(attached, target, options, settings, name, copy)
    try:
        return _place_writable(attached, target, options, settings, name, copy)
    except OSError as error:
        raise MountError(f"{target} cannot be mounted: {error.filename}: {error.strerror}") from error


def _place_writable(
    attached: Attached, target: str, options: TreeOptions, settings: DaemonSettings, name: str, copy: int
) -> str:
    """Raises MountError, OSError."""
    lower = cleanup.lower_folder(settings.runtime, attached.id)
    try:
        os.makedirs(lower)
        plane = _show(attached, lower, options, settings, name, copy)
        # Written bytes go with the mount, so nothing needs to be synced.
        kernel_mounts.mount_overlay([lower], attached.upper, target, without_disk="memory", volatile=True)
        return plane
    except BaseException:
        _remove(attached.upper)
        raise
    finally:
        cleanup.unmount_overlay(lower)  # the overlay alone holds it from here on, and takes it along
        cleanup.remove_lower(lower)


def umount(client: Client, target: str, *, lazy: bool = False) -> None:
    """Take away what `mount` put at `target`. Raises MountError, EBUSY's for one that is in use unless `lazy`."""
    target = resolved(target)
    try:
        images = client.status()["images"]
    except MountError:
        images = []  # a daemon that is gone keeps nobody from unmounting
    found = next((one for one in reversed(images) if one["mountpoint"] == target), None)
    here = kernel.find_mount(target)
    if target == devices_mount(client.settings):
        raise MountError(f"{target} is the daemon's own", hint="imagefs daemon --stop ends it")
    if here is not None and is_ours(here):
        unmount_topmost(target, lazy=lazy)
        if here.fstype == "overlay":
            _remove(here.source)
    elif found is None:
        raise MountError(f"no image is mounted at {target}", hint="imagefs status lists them")
    elif here is not None:
        raise MountError(f"{here.fstype} is mounted over the image at {target}", hint=f"umount {target} first")
    if found is not None:
        client.detach(found["id"])


def is_ours(here: kernel.MountPoint) -> bool:
    """Tells whether an image is what is mounted there, of this daemon or another."""
    if here.fstype == "overlay":
        return re.search(_UPPER, here.source) is not None
    if here.fstype == "erofs":
        from imagefs.plane import erofs

        metadata = next((one.metadata for one in reversed(erofs.mounted()) if one.path == here.path), "")
        return re.search(_METADATA, metadata) is not None
    return here.fstype == "fuse.imagefs"


def _show(attached: Attached, target: str, options: TreeOptions, settings: DaemonSettings, name: str, copy: int) -> str:
    plane = options.plane
    if plane == "auto":
        plane = "erofs" if os.geteuid() == 0 else "tree"
    if plane == "erofs" and copy >= 0:
        try:
            kernel_mounts.show(copy, target, confined=options.confined)
            return plane
        except OSError as error:
            import logging

            logging.getLogger(__name__).info("%s is mounted anew: %s", name, error.strerror)
    if plane == "erofs":
        from imagefs.plane import erofs  # a start whose image is mounted already needs none of it

        lazy = not all(device.local for device in attached.devices)
        if lazy and kernel.find_mount(devices_mount(settings)) is None:
            raise MountError(
                f"the daemon's devices are not to be seen at {settings.devices}",
                hint="it runs in another mount namespace: start one in this one, with a --runtime of its own",
            )
        devices = [device.path for device in attached.devices]
        with erofs.lazy_read_ahead() if lazy else contextlib.nullcontext():
            erofs.mount(attached.metadata, devices, target, backing=options.backing, confined=options.confined)
    else:
        show_tree(attached, target, settings, name, confined=options.confined)
    return plane


def show_tree(
    attached: Attached,
    target: str,
    settings: DaemonSettings,
    name: str,
    *,
    owner: int = 0,
    confined: bool = False,
    owned: bool = False,
) -> None:
    """The tree plane: a mount with a supervisor and workers of its own, which end with the process `owner`, if any.

    owned: all files belong to the caller, for a user namespace that has no other user.
    """
    from pathlib import Path

    from stripefs.fuse import daemonize
    from stripefs.fuse.control import make_directory
    from stripefs.fuse.ipc import MountSpec

    payload = {
        "source": name,
        "metadata": attached.metadata,
        "devices": [device.path for device in attached.devices],
        "io_timeout": settings.io_timeout,
        "owner": (os.geteuid(), os.getegid()) if owned else None,
    }
    daemonize.start(
        MountSpec(
            program="imagefs.plane.worker",
            payload=json.dumps(payload),
            source=name,
            mount=MountSettings(
                mountpoint=target,
                allow_other=os.geteuid() == 0,
                read_ahead_kb=settings.read_ahead_kb,
                max_background=settings.max_background,
                log_format=settings.log_format,
                log_level=settings.log_level,
                # Device nodes and setuid bits of the image hold in a container, as they do with EROFS.
                options=("dev", "suid") if os.geteuid() == 0 and not confined else (),
            ),
            command="imagefs",
            directory=str(make_directory(Path(settings.runtime, "imagefs/trees"))),
            owner=owner,
        )
    )


def unmount_topmost(target: str, *, lazy: bool = False) -> None:
    """Unmount whatever is topmost at `target`, if anything is. Raises MountError."""
    if kernel.find_mount(target) is not None:
        from stripefs.fuse.mounting import unmount

        unmount(target, lazy=lazy)


@contextlib.contextmanager
def _reserved(target: str) -> Iterator[str]:
    """The mountpoint, as the kernel spells it, while nobody else of us mounts there. Raises MountError."""
    path = resolved(target)
    if kernel.find_mount(path) is not None:
        raise _taken(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(f"{path} cannot be a mountpoint: {error.strerror}", hint=f"mkdir -p {path}") from error
    try:
        try:
            if not try_flock(descriptor):
                raise MountError(f"an image is being mounted at {path} already", hint="choose another mountpoint")
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without such locks
                raise
        if kernel.find_mount(path) is not None:
            raise _taken(path)
        if os.listdir(descriptor):
            raise MountError(f"{path} is not empty", hint="the mount would hide its files")
        yield path
    finally:
        os.close(descriptor)


def _remove(folder: str) -> None:
    import shutil  # a container is to start at once, and needs none of it

    shutil.rmtree(folder, ignore_errors=True)


def _taken(path: str) -> MountError:
    return MountError(f"{path} is a mountpoint already", hint=f"imagefs umount {path}, or choose another")


def resolved(target: str) -> str:
    """Links resolved, without asking a mount that may answer nobody."""
    if not target:
        raise ConfigError("the mountpoint is empty", hint="name a directory")
    parent, name = os.path.split(os.path.abspath(target))
    path = os.path.join(os.path.realpath(parent), name)
    try:
        os.readlink(path)
    except OSError:
        return path
    return os.path.realpath(path)
