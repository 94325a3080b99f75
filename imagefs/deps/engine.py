"""The engine of a start with a snapshot: hit, wait for another host, or install and publish; and the mount of a hit.

    the store has a snapshot           hit: it is used
    another host is installing         wait for what it publishes, then a hit
    nothing                            miss: install, go on, publish in the background

`imagefs.deps.host` does this for a directory of a host, `imagefs.deps.container` for a container.

On a host the image of a snapshot is mounted read-only at the path that it was installed to. All jobs of a host that
want one snapshot share one mount; the daemon counts the processes that use it, and unmounts it when the last has ended.
The process that mounts has the turn at the target (`imagefs.deps.target`), so that one of several that come at once
mounts, and the others find it mounted.

The smoke test of an installation (`--probe`): a program of the user's, mostly a few imports, that must run with it.

A packed image is tried before anybody can find it: the daemon serves the image as it will serve the snapshot. A child
that is process 1 of a PID namespace mounts it in a mount namespace of its own, over what was installed, which the job
may be using; so nobody else sees it there, and it goes with the child, however this process ends. Where that cannot be
done, the test is of what was installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imagefs import mounts
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Attached, Recording, SharedSnapshot, SnapshotUse
from imagefs.deps import publications
from imagefs.errors import DamagedBlock, DamagedObject
from imagefs.format.documents import SHORT
from imagefs.plane import erofs
from imagefs.settings import DaemonSettings, TreeOptions
from imagefs.startup.emission import events
from stripefs.errors import MountError, NotFound, StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings, redact

if TYPE_CHECKING:
    from imagefs.containers import AttachedImage
    from imagefs.repository.snapshot_lease import InstallLease
    from imagefs.run.container import MountLayer

__all__ = [
    "CHANGED",
    "PATIENCE",
    "AttachedLayer",
    "Miss",
    "MountedSnapshot",
    "Probe",
    "SmokeTestResult",
    "absent",
    "attach_above",
    "check_whole",
    "hit_or_install",
    "missed",
    "mount_snapshot",
    "probe_failure",
    "record_hit",
    "release",
    "try_packed",
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
    from imagefs.repository.snapshot_lease import InstallLease  # not needed by most, who find what they want

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


_MS_RDONLY, _MS_BIND, _MS_REMOUNT = 1, 4096, 32


def probe_failure(
    interpreter: str, code: str, target: str, folder: str | None = None, before: Callable[[], None] | None = None
) -> str:
    """The reason, in one line, for which `interpreter -c code` fails with the packages in `target`; "" where it works.

    folder: where it runs, by default the working directory. before: called in the child before it becomes the
    interpreter.
    """
    import subprocess  # not needed by most, who probe nothing

    paths = [target, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [interpreter, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            preexec_fn=before,
        )
    except OSError as error:  # the interpreter may be one of the files that are tried
        return f"{interpreter} cannot be run: {error.strerror}"
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1] if done.returncode else ""


def _read_only(target: str) -> Callable[[], None]:
    """A function that makes `target`, for the caller's process, where it may do that, as when it is mounted: nobody can
    write there."""

    from imagefs.run import namespace  # not needed by most, who probe nothing

    def make() -> None:
        with contextlib.suppress(OSError):  # plain users cannot
            namespace.private_mounts()
            kernel.mount(target, target, "", _MS_BIND, "")
            kernel.mount("", target, "", _MS_BIND | _MS_REMOUNT | _MS_RDONLY, "")

    return make


class Probe(NamedTuple):
    """A smoke test, in values that can be JSON: an interpreter, a program in Python for it, and where that runs.

    settings: fields of `DaemonSettings`. tree: fields of `TreeOptions`.
    """

    interpreter: str
    code: str
    folder: str
    settings: Mapping[str, Any]
    tree: Sequence[Any]


class SmokeTestResult(NamedTuple):
    """The result of a smoke test. failure: in one line, "" for none. unmounted: why it was not of what was packed, ""
    where it was."""

    failure: str
    unmounted: str = ""


def try_packed(probe: Probe, target: str, store: StoreSettings, image: str) -> SmokeTestResult:
    """Try the image of this digest at `target`, where it was installed.

    Raises StripefsError for an image that the daemon cannot serve, and OSError.
    """
    try:
        return SmokeTestResult(_failure_of_packed(probe, target, store, image))
    except MountError as error:
        failure = probe_failure(probe.interpreter, probe.code, target, probe.folder, _read_only(target))
        return SmokeTestResult(failure, str(error))


def _failure_of_packed(probe: Probe, target: str, store: StoreSettings, image: str) -> str:
    """The reason for which it fails, "" where it does not. Raises MountError where it cannot be mounted."""
    if os.geteuid() != 0:
        raise MountError("only root can mount it for the probe alone")
    from imagefs import containers
    from imagefs.run import namespace

    client, tree = Client(DaemonSettings(**probe.settings)), TreeOptions(*probe.tree)
    with containers.attached(client, store, image, Recording(off=True), tree) as found, found.layer() as layer:
        try:
            with namespace.child(lambda told: _test_in_child(probe, target, layer, told)) as (child, report):
                told = b"".join(iter(lambda: os.read(report, 1 << 16), b""))
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except OSError as error:
            raise _unmounted(target, error) from error
    if not told:
        return f"the process that mounts for it ended with status {status}"
    failure, unmounted, hint = json.loads(told)
    if unmounted:
        raise MountError(unmounted, hint=hint)
    return str(failure)


def _test_in_child(probe: Probe, target: str, layer: MountLayer, told: int) -> None:
    failure = unmounted = hint = ""
    try:
        _mount_alone(target, layer)
        failure = probe_failure(probe.interpreter, probe.code, target, probe.folder)
    except MountError as error:
        unmounted, hint = error.message, error.hint
    with open(told, "w", closefd=False) as file:
        json.dump([failure, unmounted, hint], file)


def _mount_alone(target: str, layer: MountLayer) -> None:
    """For this process alone. Raises MountError."""
    from imagefs.run import namespace

    try:
        namespace.private_mounts()
        layer(target)
    except OSError as error:
        raise _unmounted(target, error) from error


def _unmounted(target: str, error: OSError) -> MountError:
    return MountError(f"{target} cannot be mounted for the probe alone: {error.strerror}")
