"""Running a container from an image of a store: attach it, run it, let it go.

The daemon is asked first, with as little loaded as that takes; the rest is loaded while it is at work.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from imagefs.daemon.client import Attached, Client, Recording, new_identifier
from imagefs.plane.options import TreeOptions
from imagefs.run.options import Bind, RunOptions
from imagefs.settings import DaemonSettings, ready_folder
from stripefs.errors import MountError, StripefsError
from stripefs.settings import StoreSettings

__all__ = ["run"]

_MS_BIND = 4096

_INSIDE = "/run/imagefs"
"""Where a container finds the folder in which it says that its job has started."""


def run(
    client: Client, store: StoreSettings, image: str, options: RunOptions, tree: TreeOptions, recording: Recording
) -> int:
    """Run a container from the image of this tag or digest and wait for it; the exit status of its command.

    As `imagefs.run.container.run` otherwise.
    """
    settings = client.settings
    identifier = new_identifier()
    signals = ready_folder(settings.runtime, identifier)
    if not recording.ready_file and not recording.off:
        recording = recording._replace(ready_file=f"{signals}/ready")
        options = options._replace(
            binds=[*options.binds, Bind(signals, _INSIDE)],
            env=[f"IMAGEFS_READY={_INSIDE}/ready", *options.env],
        )
    attached = client.attach(
        store, image, recording, owner=os.getpid(), identifier=identifier, meanwhile=lambda: _load(options)
    )
    try:
        from imagefs.run import container

        with _shared(signals), _mounter(attached, tree, settings, image) as mount_root:
            scratch = os.path.dirname(attached.upper)
            return container.run(options, attached.config, mount_root, f"{settings.runtime}/imagefs", scratch)
    finally:
        import shutil  # not needed before a container starts

        shutil.rmtree(signals, ignore_errors=True)
        _let_go(client, attached)


def _load(options: RunOptions) -> None:
    """Load what is needed once the image is there, half of what a start loads, while the daemon is at work."""
    from imagefs import mounts  # noqa: F401
    from imagefs.run import container, runtime  # noqa: F401

    runtime.read_ahead(options.runtime)


@contextlib.contextmanager
def _mounter(
    attached: Attached, tree: TreeOptions, settings: DaemonSettings, image: str
) -> Iterator[Callable[[str], None]]:
    """What mounts the image at a directory in the container's namespace.

    The kernel's EROFS is mounted there and ends with it. The tree plane has processes, which must not be the
    container's: it is mounted outside, for as long as this process lives, and bound.
    """
    from imagefs import mounts

    if tree.plane != "tree":
        with mounts.copied(attached, tree) as copy:

            def mount_here(target: str) -> None:
                mounts.place(attached, target, tree, settings, name=image, copy=copy)

            yield mount_here
        return
    from imagefs.daemon import leftovers
    from stripefs.mount import kernel

    lower = leftovers.lower_folder(settings.runtime, attached.id)
    try:
        lower.mkdir(parents=True)
    except OSError as error:
        raise MountError(f"{lower} cannot be made: {error.strerror}") from error
    try:
        mounts.show_tree(attached, str(lower), settings, image, owner=os.getpid())
        yield lambda target: kernel.mount(str(lower), target, "", _MS_BIND, "")
    finally:
        leftovers.take_off(str(lower))
        leftovers.remove_lower(lower)


@contextlib.contextmanager
def _shared(folder: str) -> Iterator[None]:
    """A folder in which the job, which may be anybody, can make files; it says as well that we live."""
    from imagefs.daemon import leftovers

    try:
        os.makedirs(folder)
        os.chmod(folder, 0o777)  # noqa: S103  the job may be anybody
        held = leftovers.hold(folder)
    except OSError as error:
        raise MountError(f"{folder} cannot be made: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(held)


def _let_go(client: Client, attached: Attached) -> None:
    """A daemon that died meanwhile is no reason to hide how the command ended."""
    with contextlib.suppress(StripefsError):
        client.detach(attached.id)
