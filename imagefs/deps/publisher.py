"""`python -m imagefs.deps.publisher`: publishes what was installed, beside the job that uses it already.

On standard input it takes the JSON of a `PublishJob`. Its end is kept for the next start
(`imagefs.deps.publications`) and said on standard error in one line. Exit status 0: there is a snapshot now.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator

from imagefs.deps import publications
from imagefs.deps.lease import Lead, lead
from imagefs.deps.publications import PublishOutcome
from imagefs.deps.publish import PublishJob, SnapshotPlace, publish
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.store import open_repository
from stripefs.errors import Busy, StoreError, StripefsError, Unsupported
from stripefs.settings import store_settings
from stripefs.write.errors import DraftLost

__all__ = ["conclude", "main"]

_PATIENCE = 60.0
"""Seconds in which a store may come back."""

_NICE = 10
"""The job's start goes first."""


def main() -> int:
    """The program; its exit code."""
    job = PublishJob(**json.loads(sys.stdin.read()))
    # Threads, which stores have, inherit it: whoever waits for the container of a probe is to be told that it ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    return conclude(job, _place(job))


def conclude(job: PublishJob, place: contextlib.AbstractContextManager[SnapshotPlace | None]) -> int:
    """Publish what is at this place, and say and keep how that ended; the exit code of a program that does this.

    place: None for the target on this host. Entering it may raise StripefsError and OSError.
    """
    os.nice(_NICE)
    try:
        done = _publish(job, place)
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


def _publish(job: PublishJob, place_of_job: contextlib.AbstractContextManager[SnapshotPlace | None]) -> PublishOutcome:
    """Raises Busy where another host leads, StripefsError and OSError."""
    with place_of_job as place, _opened(job) as images:
        leads = _lead(Snapshots(images), job)
        try:
            done = _tried(job, images, leads, place)
            if leads is not None and not done.published:
                with contextlib.suppress(StoreError):  # the others find out by themselves
                    Snapshots(images).note_unkept(job.name, done.lines[0])
            return done
        finally:
            if leads is not None:
                leads.release()


@contextlib.contextmanager
def _opened(job: PublishJob) -> Iterator[Images]:
    with contextlib.closing(open_repository(store_settings(job.store), make=True)) as repository:
        yield Images(repository, _PATIENCE)


@contextlib.contextmanager
def _place(job: PublishJob) -> Iterator[SnapshotPlace | None]:
    """The place where it was installed, None for the target on this host."""
    if not job.inside:
        yield None
        return
    from imagefs.deps.container.install import opened

    with opened(job) as upper:
        yield upper


def _tried(job: PublishJob, images: Images, leads: Lead | None, place: SnapshotPlace | None) -> PublishOutcome:
    """Raises Busy and DraftLost, where another host leads by now."""
    try:
        return publish(job, images, leads.check if leads is not None else lambda: None, place)
    except (Busy, DraftLost):
        raise
    except (StripefsError, OSError) as error:
        return PublishOutcome(False, (str(error),), time.time(), broken=True)


def _lead(snapshots: Snapshots, job: PublishJob) -> Lead | None:
    """None where the store has no locks: then the first who publishes does."""
    try:
        return lead(snapshots, job.name, job.owner)
    except Unsupported:
        return None


if __name__ == "__main__":
    sys.exit(main())
