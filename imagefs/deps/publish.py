"""Publication of an installed directory as a snapshot: checked, packed, and named last, so a snapshot with a name is
whole.

The directory is in use meanwhile. So it is compared with what it was when the installer had ended, before it is checked
and once more when it was packed; where a file was changed nothing is published. Files that programs have put into
`__pycache__` for themselves are left out. Nothing here harms the job: the worst that comes of it is no snapshot, and a
line that says why.

`python -m imagefs.deps.publish` does this beside the job that uses it already. On standard input it takes the JSON of a
`PublishJob`. Its end is kept for the next start (`imagefs.deps.publications`) and said on standard error in one line.
Exit status 0: there is a snapshot now.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from imagefs.build.image import build
from imagefs.deps import publications
from imagefs.deps.capture import CapturedTree, capture_directory
from imagefs.deps.check.rules import Finding, Verdict, judge
from imagefs.deps.check.tree import Findings, Installation, check_tree
from imagefs.deps.engine import Probe, SmokeTestResult, try_packed
from imagefs.deps.install import install_findings
from imagefs.deps.inventory import Inventory, take
from imagefs.deps.local import Wheel, differs
from imagefs.deps.lock import Lock
from imagefs.deps.publications import PublishOutcome
from imagefs.deps.target import TargetDirectory
from imagefs.format.documents import Snapshot, SnapshotKind, key_digest
from imagefs.repository.images import Images
from imagefs.repository.snapshot_lease import RenewedLock, leading
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.store import open_repository
from imagefs.settings import Compression
from stripefs.errors import Busy, DraftLost, StoreError, StripefsError
from stripefs.settings import store_settings

if TYPE_CHECKING:
    from imagefs.deps.container.start import ContainerRequest
    from imagefs.deps.host import HostRequest
    from imagefs.deps.install import InstallOutcome
    from imagefs.repository.snapshot_lease import InstallLease
    from imagefs.settings import DaemonSettings

__all__ = ["DirectoryPlace", "PublishJob", "SnapshotPlace", "conclude", "job_of", "main", "publish"]

_TOLD = 3
"""Distributions that a line names."""

_PATIENCE = 60.0
"""Seconds in which a store may come back."""

_NICE = 10
"""The job's start goes first."""


class PublishJob(NamedTuple):
    """A publication that is to be done, in values that can be JSON.

    store: fields of `StoreSettings`. cache: of the daemon. key: the document of the key. seconds: that the installation
    took. findings: of the installer's course, as `Finding` has them. environment, sites, beside, allowed, checked,
    tolerant and setuid: as in `Installation`. owner: of the lead that is handed over, "" for none. lock: the document
    of the lock, None where anything may be installed. inside: fields of `imagefs.deps.container.install.Inside`, none
    on a host. probe: fields of `imagefs.deps.engine.Probe`, none where nothing is to be tried, nor in a container:
    `inside` has that. wheels: fields of `imagefs.deps.local.Wheel`, of what directories were built to. hint: name and
    document of the one that leads starts to the snapshot (`imagefs.deps.container.early`), none on a host.
    compression: fields of `Compression`.
    """

    store: Mapping[str, Any]
    cache: str
    key: Any
    target: str
    seconds: float
    findings: Sequence[Sequence[str]] = ()
    environment: Mapping[str, str] = {}
    sites: Sequence[str] = ()
    beside: Sequence[str] = ()
    allowed: Sequence[str] = ()
    checked: bool = False
    owner: str = ""
    lock: Any = None
    tolerant: bool = False
    inside: Sequence[Any] = ()
    probe: Sequence[Any] = ()
    setuid: bool = False
    wheels: Sequence[Sequence[Any]] = ()
    damaged: bool = False
    hint: Sequence[str] = ()
    compression: Sequence[Any] = ()

    @property
    def name(self) -> str:
        return key_digest(self.key)

    def installation(self, at: str) -> Installation:
        """Facts about the tree besides its files; at: as there."""
        beside, allowed = tuple(self.beside), tuple(self.allowed)
        return Installation(at, self.environment, self.sites, beside, allowed, self.checked, self.tolerant, self.setuid)


def job_of(
    request: HostRequest | ContainerRequest,
    settings: DaemonSettings,
    key: Any,
    target: str,
    done: InstallOutcome,
    uncompiled: Sequence[str],
    lease: InstallLease,
) -> PublishJob:
    """The publication of an installation that ended so, under the lease, which is handed over: as far as it is the same
    on a host and in a container. uncompiled: paths of sources."""
    return PublishJob(
        store=request.store._asdict(),
        cache=settings.cache,
        key=key,
        target=target,
        seconds=done.seconds,
        findings=install_findings(done, uncompiled),
        allowed=request.allowed,
        checked=request.checked,
        owner=lease.hand_over(),
        tolerant=request.tolerant,
        setuid=request.setuid,
        damaged=lease.damaged,
        compression=settings.compression,
    )


class SnapshotPlace(Protocol):
    """The place where it was installed."""

    kind: SnapshotKind
    targets: tuple[str, ...]

    def changed(self) -> Sequence[str]:
        """Paths of what is not as it was when the installer had ended."""

    def look(self) -> tuple[Inventory, Findings]:
        """The inventory that is to be published, and findings against that."""

    def capture(self) -> CapturedTree:
        """The tree that is to be packed."""

    def smoke_test(self, image: str) -> SmokeTestResult:
        """The result of the smoke test of what was packed, the image of this digest. Raises StripefsError and
        OSError."""


class DirectoryPlace:
    """The target of a job on a host."""

    kind: SnapshotKind = "host"

    def __init__(self, job: PublishJob) -> None:
        self._job = job
        self._target = TargetDirectory(job.target, job.cache)
        self.targets: tuple[str, ...] = (job.target,)

    def changed(self) -> Sequence[str]:
        return self._target.changes(take(self._job.target))

    def look(self) -> tuple[Inventory, Findings]:
        seen = self._installed()
        return seen, check_tree(seen, self._job.installation(self._job.target))

    def capture(self) -> CapturedTree:
        return capture_directory(self._installed())

    def smoke_test(self, image: str) -> SmokeTestResult:
        job = self._job
        if not job.probe:
            return SmokeTestResult("")
        return try_packed(Probe(*job.probe), job.target, store_settings(job.store), image)

    def _installed(self) -> Inventory:
        """Entries but for caches, and directories that were made for these."""
        seen = take(self._job.target)
        caches = self._target.caches(seen)
        kept = {path: facts for path, facts in seen.entries.items() if path not in caches}
        empty = {posixpath.dirname(path) for path in caches} - {posixpath.dirname(path) for path in kept}
        return seen._replace(entries={path: facts for path, facts in kept.items() if path not in empty})


def publish(
    job: PublishJob, images: Images, still_leads: Callable[[], None], place: SnapshotPlace | None = None
) -> PublishOutcome:
    """Check what was installed, and publish it unless something speaks against that.

    still_leads: raises when somebody else does by now. place: where it was installed, the target on this host unless
    given. Raises what goes wrong in the store and on the way there.
    """
    done = _publish(job, images, still_leads, place or DirectoryPlace(job))
    if done.published and job.hint:
        name, document = job.hint
        with contextlib.suppress(StoreError):  # starts find the snapshot without it, and store it
            Snapshots(images).put_note("hints", name, document.encode())
    return done


def _publish(job: PublishJob, images: Images, still_leads: Callable[[], None], place: SnapshotPlace) -> PublishOutcome:
    snapshots = Snapshots(images)
    verdict = _verdict(job, place)
    if not verdict.publish:
        return PublishOutcome(False, verdict.lines, time.time())
    if job.damaged:  # the bytes that this host could not use decide, and not only how many there are
        images.damaged_packs = snapshots.damaged_packs(job.name)
    if snapshots.is_usable(job.name):
        return PublishOutcome(True, verdict.lines, time.time())
    root, contents = place.capture()
    report = build(root, contents, images, source=job.name, compression=Compression(*job.compression))
    published = False
    try:
        if changed := _changed(place):
            return PublishOutcome(False, judge([changed]).lines, time.time())
        test = place.smoke_test(report.digest)
        if test.failure:
            return PublishOutcome(False, (f"the probe failed: {test.failure}", *_noted(test)), time.time())
        lines = (*verdict.lines, *_noted(test))
        still_leads()
        published = snapshots.put(
            Snapshot(job.key, report.digest, place.kind, place.targets, time.time(), job.seconds, lines)
        )
    finally:
        if not published:
            snapshots.retract(job.name, report.digest)
    return PublishOutcome(True, lines, time.time(), report.digest, report.new_bytes)


def _noted(test: SmokeTestResult) -> tuple[str, ...]:
    return (f"the probe ran on what was installed: {test.unmounted}",) if test.unmounted else ()


def _verdict(job: PublishJob, place: SnapshotPlace) -> Verdict:
    if changed := _changed(place):
        return judge([changed])
    course = [Finding(kind, subject, what) for kind, subject, what in job.findings]  # type: ignore[arg-type]
    seen, found = place.look()
    verdict = judge([*course, *found.items])
    loose = _strange(Lock.from_document(job.lock), found.distributions) if job.lock else ""
    loose = loose or differs([Wheel(*one) for one in job.wheels], seen)
    return Verdict(False, (loose, *verdict.lines)) if loose else verdict


def _strange(lock: Lock, distributions: Iterable[str]) -> str:
    """A line about distributions, given as `NAME VERSION`, that the lock has not; "" where there is none."""
    found = lock.lacks({name: version for name, _, version in (one.partition(" ") for one in distributions)})
    if not found:
        return ""
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    return f"these were installed and are not what was resolved before: {', '.join(found[:_TOLD])}{more}"


def _changed(place: SnapshotPlace) -> Finding | None:
    changes = place.changed()
    return (
        Finding("changed", changes[0], f"and {len(changes) - 1} more" if len(changes) > 1 else "") if changes else None
    )


def main() -> int:
    """The program; its exit code."""
    job = PublishJob(**json.loads(sys.stdin.read()))
    # Threads, which stores have, inherit it: a process that waits for the container of a probe is to learn that it
    # ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    return conclude(job, _place(job))


def conclude(job: PublishJob, place: contextlib.AbstractContextManager[SnapshotPlace | None]) -> int:
    """Publish what is at this place, and say and keep how that ended; the exit code of a program that does this.

    place: None for the target on this host. Entering it may raise StripefsError and OSError.
    """
    os.nice(_NICE)
    try:
        done = _publish_leading(job, place)
    except (Busy, DraftLost):
        done = PublishOutcome(False, ("another host leads, and publishes its own",), time.time())
    except (StripefsError, OSError) as error:
        done = PublishOutcome(False, (str(error),), time.time(), broken=True)
    told = "published" if done.published else "not published"
    lines = [f"snapshot {job.name[:12]} {told}: {'; '.join(done.lines) or job.target}"]
    try:
        publications.save_outcome(job.cache, job.name, done)
        if not done.broken:
            publications.end_publication(job.cache, job.name)
    except OSError as error:
        lines.append(f"how it ended is not kept: {error}")
    sys.stderr.write("".join(f"imagefs: {line}\n" for line in lines))
    return 0 if done.published else 1


def _publish_leading(
    job: PublishJob, place_of_job: contextlib.AbstractContextManager[SnapshotPlace | None]
) -> PublishOutcome:
    """Raises Busy where another host leads, StripefsError and OSError."""
    with (
        place_of_job as place,
        contextlib.closing(open_repository(store_settings(job.store), make=True)) as repository,
        leading(Snapshots(images := Images(repository, _PATIENCE)), job.name, job.owner) as lease,
    ):
        done = _attempt(job, images, lease, place)
        if lease is not None and not done.published:
            with contextlib.suppress(StoreError):  # the others find out by themselves
                Snapshots(images).note_unpublished(job.name, done.lines[0])
        return done


@contextlib.contextmanager
def _place(job: PublishJob) -> Iterator[SnapshotPlace | None]:
    """The place where it was installed, None for the target on this host."""
    if not job.inside:
        yield None
        return
    from imagefs.deps.container.install import opened

    with opened(job) as upper:
        yield upper


def _attempt(job: PublishJob, images: Images, lease: RenewedLock | None, place: SnapshotPlace | None) -> PublishOutcome:
    """Raises Busy and DraftLost, where another host leads by now."""
    try:
        return publish(job, images, lease.check if lease is not None else lambda: None, place)
    except (Busy, DraftLost):
        raise
    except (StripefsError, OSError) as error:
        return PublishOutcome(False, (str(error),), time.time(), broken=True)


if __name__ == "__main__":
    sys.exit(main())
