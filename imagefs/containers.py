"""Running containers from an image of a store: attach it, run them, let it go.

The daemon is asked first, with as little loaded as that takes; the rest is loaded while it is at work.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from imagefs.daemon import announcement
from imagefs.daemon.client import Client, new_identifier
from imagefs.daemon.protocol import Attached, Recording
from imagefs.run.options import RunOptions
from imagefs.settings import DaemonSettings, TreeOptions, client_marker, ready_folder
from imagefs.startup.emission import events
from stripefs.errors import MountError, StripefsError
from stripefs.records import NamedTuple
from stripefs.settings import StoreSettings

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from imagefs.run.container import MountLayer

__all__ = ["AttachedImage", "JobRunner", "attached", "layer_of", "release", "run", "run_job"]

_MS_BIND = 4096

_EVENTS_WITHIN = 2.0
"""Seconds for the daemon to tell what it observed of a start."""


def run(
    client: Client,
    store: StoreSettings,
    image: str,
    options: RunOptions,
    tree: TreeOptions,
    recording: Recording,
    job: JobRunner | None = None,
) -> int:
    """Run a container from the image of this tag or digest and wait for it; the exit status of its command.

    job: runs it, `run_job` unless given. As `imagefs.run.container.run` otherwise.
    """
    with attached(client, store, image, recording, tree, options.runtime) as found:
        return (job or run_job)(found, options, (), "")


class AttachedImage(NamedTuple):
    """An image that is attached for containers of this process. held: a descriptor that keeps all of it (`hold` of
    `imagefs.daemon.cleanup`). recording: as the daemon was told, so that others may end with the same start.
    unpacked: a copy of its tree, "" for none."""

    client: Client
    attached: Attached
    name: str
    tree: TreeOptions
    recording: Recording
    held: int
    unpacked: str

    def layer(self) -> contextlib.AbstractContextManager[MountLayer]:
        """A function that mounts it at a directory, as long as the block lasts."""
        if self.unpacked:
            from stripefs.fuse import kernel

            return contextlib.nullcontext(lambda target: kernel.mount(self.unpacked, target, "", _MS_BIND, ""))
        return layer_of(self.client, self.attached, self.tree, self.name)

    def run(
        self,
        options: RunOptions,
        above: Sequence[MountLayer] = (),
        kept_dir: str = "",
        *,
        marked: bool = False,
        beside: Mapping[str, MountLayer] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> int:
        """Run a container and wait for it; the exit status of its command. above: trees that lie on the image, the
        first on top. kept_dir, beside: as `imagefs.run.container.run` has it. marked: its command can say that it has
        started, where nobody says how it does. on_ready: called, on another thread, when it does."""
        from imagefs.run import container

        tells = (self.recording.off and events().on) or self._reports_readiness
        calls = [call for call in (self._started if marked and tells else None, on_ready) if call is not None]

        def started() -> None:
            for call in calls:
                call()

        settings = self.client.settings
        with self.layer() as layer:
            return container.run(
                options,
                self.attached.config,
                [*above, layer],
                f"{settings.runtime}/imagefs",
                os.path.dirname(self.attached.upper),
                kept_dir,
                started if calls else None,
                events().executed if marked and events().on else None,
                beside,
            )

    @property
    def _reports_readiness(self) -> bool:
        """True where the daemon waits for our word that the job has started."""
        told = client_marker(self.client.settings.runtime, self.attached.id)
        return not self.recording.off and self.recording.ready_file == told

    def _started(self) -> None:
        events().instant("ready")
        if self._reports_readiness:
            self._tell()
        if events().on:
            with contextlib.suppress(StripefsError):  # the daemon's observations come when the image is released
                self.client.ready(self.attached.id, timeout=_EVENTS_WITHIN)

    def _tell(self) -> None:
        """Let the daemon know, which looks for this file, also when it is being replaced just now."""
        with contextlib.suppress(FileNotFoundError):  # this use has just ended
            os.close(os.open(self.recording.ready_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


JobRunner = Callable[[AttachedImage, RunOptions, Sequence["MountLayer"], "str | None"], int]
"""Runs a job's container with trees above its image; the exit status of its command. The text names the packages in
these trees: the key of their snapshot, "" where there are none, and None where they are unknown."""


def run_job(image: AttachedImage, options: RunOptions, above: Sequence[MountLayer], _packages: str | None) -> int:
    """A `JobRunner` that does nothing besides."""
    return image.run(options, above, marked=True)


@contextlib.contextmanager
def attached(
    client: Client,
    store: StoreSettings,
    image: str,
    recording: Recording,
    tree: TreeOptions,
    runtime: str = "auto",
    first: Callable[[Recording], None] | None = None,
    load: Callable[[], None] | None = None,
) -> Iterator[AttachedImage]:
    """The image of this tag or digest, attached until the block ends. runtime: what will run its containers. first:
    called before, with the recording as the daemon is told. load: loads what else is needed once the image is there."""
    settings = client.settings
    identifier = announcement.take() or new_identifier()
    signals = ready_folder(settings.runtime, identifier)
    if not recording.ready_file and not recording.off:
        recording = recording._replace(ready_file=client_marker(settings.runtime, identifier))
    if first is not None:
        first(recording)
    with events().begin("image", "attach", image=image) as span:
        found = client.attach(
            store,
            image,
            recording,
            owner=os.getpid(),
            identifier=identifier,
            shares=tree.shares,
            meanwhile=lambda: _load(runtime, load),
            span=span.id,
        )
        span.end(image=found.image)
    try:
        with _shared(signals) as held:
            unpacked = _unpack(client, found, image, tree) if tree.unpack else ""
            yield AttachedImage(client, found, image, tree, recording, held, unpacked)
    finally:
        _clear(settings, identifier)
        release(client, found)


def _load(runtime: str, load: Callable[[], None] | None) -> None:
    """Load what is needed once the image is there, half of what a start loads, while the daemon is at work."""
    from imagefs import mounts  # noqa: F401
    from imagefs.run import container  # noqa: F401
    from imagefs.run.runtime import read_ahead

    read_ahead(runtime)
    if load is not None:
        load()


def _unpack(client: Client, attached: Attached, name: str, tree: TreeOptions) -> str:
    """Copy the whole tree to the folder for what is written, with which it goes; the path of the copy. The process that
    copies ends with this one. Raises MountError."""
    import subprocess

    from imagefs import mounts
    from imagefs.daemon import cleanup
    from imagefs.run.namespace import end_with_parent

    if os.geteuid() != 0:
        raise MountError("--unpack needs root: files keep their owners", hint="sudo")
    lower, copy = cleanup.lower_folder(client.settings.runtime, attached.id), f"{attached.upper}/tree"
    parent = os.pidfd_open(os.getpid())
    try:
        with events().begin("image", "unpack"):
            os.makedirs(lower)
            os.makedirs(copy)
            mounts.show_attached(attached, lower, tree, client.settings, name=name)
            subprocess.run(
                ["cp", "-a", "--", f"{lower}/.", copy], check=True, preexec_fn=lambda: end_with_parent(parent)
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise MountError(f"{name} cannot be copied to {copy}: {error}") from error
    finally:
        os.close(parent)
        cleanup.unmount_overlay(lower)
        cleanup.remove_lower(lower)
    return copy


@contextlib.contextmanager
def layer_of(client: Client, attached: Attached, tree: TreeOptions, name: str) -> Iterator[MountLayer]:
    """A function that mounts an attached image at a directory in a container's namespace.

    The kernel's EROFS is mounted there and ends with it. The tree plane has processes, which must not be the
    container's: it is mounted outside, for as long as this process lives, and bound.
    """
    from imagefs import mounts

    settings = client.settings
    root = os.geteuid() == 0
    if tree.plane == "erofs" or (tree.plane == "auto" and root):
        with mounts.shared_mount(client, attached, tree) as copy:

            def mount_here(target: str) -> None:
                mounts.show_attached(attached, target, tree, settings, name=name, copy=copy)

            yield mount_here
        return
    from imagefs.daemon import cleanup
    from stripefs.fuse import kernel

    lower = cleanup.lower_folder(settings.runtime, attached.id)
    try:
        os.makedirs(lower)
    except OSError as error:
        raise MountError(f"{lower} cannot be made: {error.strerror}") from error
    try:
        mounts.show_tree(attached, lower, settings, name, owner=os.getpid(), owned=not root)
        yield lambda target: kernel.mount(lower, target, "", _MS_BIND, "")
    finally:
        cleanup.unmount_overlay(lower)
        cleanup.remove_lower(lower)


@contextlib.contextmanager
def _shared(folder: str) -> Iterator[int]:
    """A folder in which we tell the daemon that the job has started; it says as well that we live."""
    from imagefs.daemon import cleanup

    try:
        os.makedirs(folder, 0o700)
        held = cleanup.hold(folder)
    except OSError as error:
        raise MountError(f"{folder} cannot be made: {error.strerror}") from error
    try:
        yield held
    finally:
        os.close(held)


def _clear(settings: DaemonSettings, identifier: str) -> None:
    """Remove what there is of the attachment, unless somebody else holds it. The daemon removes later what cannot go
    now."""
    from imagefs.daemon import cleanup

    with contextlib.suppress(OSError, StripefsError):
        cleanup.clear(settings.cache, settings.runtime, identifier)


def release(client: Client, attached: Attached) -> None:
    """Release the attachment. A daemon that died meanwhile is no reason to hide how the command ended."""
    with contextlib.suppress(StripefsError):
        client.detach(attached.id)
