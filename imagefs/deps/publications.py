"""Publications in the background, and their records in the cache of a host: those that are not ended, and how the last
try of each ended.

    CACHE/deps/pending/NAME.json      a publication that was begun, as a document
    CACHE/deps/outcomes/NAME.json     how the last try ended, for whoever asks next
    CACHE/deps/outcomes/NAME.log      what the program that tried had to say

A publisher holds a lock on its document, which it has from the start that began it, and removes the document when
there is an answer. So where one lies there and nobody holds it, its publisher was killed, or could not reach the store,
and a later start at the same target may have it tried again. Small files of the cache that a later start may want, and
that nobody misses when they are gone, are written by `keep_file`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imagefs.format.documents import SHORT
from imagefs.startup.emission import unnamed
from stripefs.osutil import atomic_file, try_flock

if TYPE_CHECKING:
    import subprocess

    from imagefs.deps.publish import PublishJob

__all__ = [
    "PublishOutcome",
    "Unfinished",
    "begin_publication",
    "end_publication",
    "keep_file",
    "last_outcome",
    "publish_beside",
    "save_outcome",
    "unfinished",
]

_KEPT = 30 * 24 * 3600.0
"""Seconds; whoever asks later learns it anew."""


def keep_file(path: Path, text: str) -> None:
    """Write a file that appears as a whole, and remove those beside it that are old. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.encode())
    for old in path.parent.iterdir():
        if time.time() - old.stat().st_mtime > _KEPT:
            old.unlink(missing_ok=True)


class Unfinished(NamedTuple):
    """A publication, as JSON values, and a descriptor with the lock; to be closed."""

    job: dict[str, Any]
    descriptor: int


def begin_publication(cache: str, name: str, job: dict[str, Any]) -> int:
    """Note what is to be published; a descriptor with the lock, for the process that does. Raises OSError."""
    path = _pending_path(cache, name)
    keep_file(path, json.dumps(job))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def unfinished(cache: str, name: str) -> Unfinished | None:
    """The publication that is not being published any more. Raises OSError."""
    try:
        descriptor = os.open(_pending_path(cache, name), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        if not try_flock(descriptor):
            return None
        if not os.fstat(descriptor).st_nlink:
            return None  # it has just ended
        with open(descriptor, closefd=False) as file:
            try:
                job = dict(json.load(file))
            except (ValueError, TypeError):  # as a power cut leaves it
                end_publication(cache, name)
                return None
        undo.pop_all()
        return Unfinished(job, descriptor)


def end_publication(cache: str, name: str) -> None:
    """There is an answer. Raises OSError."""
    _pending_path(cache, name).unlink(missing_ok=True)


def _pending_path(cache: str, name: str) -> Path:
    return Path(cache, "deps/pending", f"{name}.json")


class PublishOutcome(NamedTuple):
    """published: whether there is a snapshot now, by whomever. lines: why not, or what was noticed. at: seconds since
    1970. stored: bytes that came into the store. broken: whether trouble kept it from that, which may be over later."""

    published: bool
    lines: tuple[str, ...]
    at: float
    image: str = ""
    stored: int = 0
    broken: bool = False


def save_outcome(cache: str, name: str, outcome: PublishOutcome) -> None:
    """Raises OSError."""
    keep_file(_outcome_path(cache, name), json.dumps(outcome._asdict()))


def last_outcome(cache: str, name: str) -> PublishOutcome | None:
    """None where no publication was tried, or its outcome is unknown."""
    try:
        told = json.loads(_outcome_path(cache, name).read_text())
        return PublishOutcome(**{**told, "lines": tuple(map(str, told["lines"]))})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _log_of(cache: str, name: str) -> Path:
    """The log of the program that publishes. Raises OSError."""
    path = _outcome_path(cache, name).with_suffix(".log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _outcome_path(cache: str, name: str) -> Path:
    return Path(cache, "deps/outcomes", f"{name}.json")


@contextlib.contextmanager
def publish_beside(
    job: PublishJob, tell: Callable[[str], None], *, wait: bool, held: Sequence[int] = ()
) -> Iterator[int]:
    """Publish in the background; the process that does. With `wait` it has ended after the block.

    held: descriptors that it is to keep. Raises OSError.
    """
    publisher = _publisher(job, held)
    yield publisher.pid
    if not wait:
        tell(f"snapshot {job.name[:SHORT]} is published in the background (process {publisher.pid})")
        return
    status = publisher.wait()
    told = _log_of(job.cache, job.name).read_text(errors="replace").splitlines()
    for line in told or [f"snapshot {job.name[:SHORT]}: what publishes it ended with status {status}"]:
        tell(line.removeprefix("imagefs: "))


def _publisher(job: PublishJob, held: Sequence[int]) -> subprocess.Popen[bytes]:
    """The process that publishes, which outlives this one and its group."""
    import subprocess  # not needed by most, who find what they want

    with open(_log_of(job.cache, job.name), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "imagefs.deps.publish"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            pass_fds=held,
            cwd="/",
            # It is no part of the start, which goes on beside it.
            env=unnamed(os.environ),
        )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(json.dumps(job._asdict()).encode())
    return process
