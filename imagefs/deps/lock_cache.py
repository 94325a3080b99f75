"""The cache of locks: the lock of a set of requirements, kept by this host or the store, else asked of the resolver.

    CACHE/deps/locks/NAME     a document: `at`, seconds since 1970, and `lock`
    STORE/locks/NAME          the same

NAME is the digest of everything that decides about the answer but the index itself. An answer is believed for
`resolve_age` seconds, so an index is asked once in that time by all hosts that share a store, and hosts that resolve at
the same moment take the first answer that reached the store.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from imagefs.deps import publications
from imagefs.deps.lock import Lock
from imagefs.deps.resolver import Question, read_answer
from imagefs.errors import FormatError, SnapshotError
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.repository.snapshots import Snapshots

__all__ = ["QUIET", "LockCache", "ResolvedLock", "Resolver", "RunResolver", "run_here"]

_LONGEST = 600.0
"""Seconds for a resolver, which may have to build packages to learn what they need."""

QUIET = {"PIP_VERBOSE": "0", "PIP_QUIET": "0"}
"""Variables for resolvers, whose standard output is their answer."""

_SKEW = 60.0
"""Seconds by which the clock of another host may be ahead."""

RunResolver = Callable[[Question, str, Mapping[str, str], Sequence[str]], str]
"""Runs a question in a folder and an environment, where these paths of the host are seen; what it printed. Raises
SnapshotError with the reason where that fails."""


class ResolvedLock(NamedTuple):
    """cached: whether it was resolved by an earlier start."""

    lock: Lock
    cached: bool


class Resolver(Protocol):
    """Answers with the lock for a question; name: as in the documents. Raises SnapshotError where there is none."""

    def lock(
        self,
        name: str,
        tool: tuple[str, str],
        question: Question,
        folder: str,
        environ: Mapping[str, str],
        paths: Sequence[str],
    ) -> ResolvedLock: ...


class LockCache:
    """The locks of this host's cache and of a store, and the resolver that `run` runs. store: None for no store.

    make: whether a store that is not there yet is made. read: the document of this name in the store, nothing where
    there is none, in place of reading it here. Raises StripefsError."""

    def __init__(
        self,
        cache: str,
        store: StoreSettings | None,
        age: float,
        run: RunResolver | None = None,
        *,
        make: bool = True,
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        self._cache = cache
        self._store = store
        self._age = age
        self._run = run or run_here
        self._make = make
        self._read_note = read or self._read_here

    def lock(
        self,
        name: str,
        tool: tuple[str, str],
        question: Question,
        folder: str,
        environ: Mapping[str, str],
        paths: Sequence[str],
    ) -> ResolvedLock:
        """The lock. tool: name and version of the resolver. Raises SnapshotError."""
        if (known := self._here(name)) is not None:
            return ResolvedLock(known, cached=True)
        if (known := self._stored(name)) is not None:
            self._keep(name, known)
            return ResolvedLock(known, cached=True)
        try:
            lock = read_answer(tool[0], self._run(question, folder, environ, paths), " ".join(tool))
        except FormatError as error:
            raise SnapshotError(error.message) from error
        other = self._put(name, lock)
        self._keep(name, other or lock)
        return ResolvedLock(other or lock, cached=other is not None)

    def forget(self, name: str) -> None:
        """It does not hold any more. Other hosts believe it until it is old."""
        self._path(name).unlink(missing_ok=True)

    def _here(self, name: str) -> Lock | None:
        try:
            return self._read(self._path(name).read_bytes())
        except OSError:
            return None

    def _keep(self, name: str, lock: Lock) -> None:
        with contextlib.suppress(OSError):  # then the next start asks again
            publications.keep_file(self._path(name), _document(lock).decode())

    def _path(self, name: str) -> Path:
        return Path(self._cache, "deps/locks", name)

    def _stored(self, name: str) -> Lock | None:
        with contextlib.suppress(StripefsError, OSError):
            if data := self._read_note(name):
                return self._read(data)
        return None

    def _read_here(self, name: str) -> bytes:
        with self._snapshots() as snapshots:
            return snapshots.note("locks", name) if snapshots is not None else b""

    def _put(self, name: str, lock: Lock) -> Lock | None:
        """Let others have it. What another host has put there meanwhile, None for nothing."""
        with contextlib.suppress(StripefsError, OSError), self._snapshots() as snapshots:
            if snapshots is None:
                return None
            if (data := snapshots.note("locks", name)) and (other := self._read(data)) is not None:
                return other
            snapshots.put_note("locks", name, _document(lock))
        return None

    @contextlib.contextmanager
    def _snapshots(self) -> Iterator[Snapshots | None]:
        if self._store is None:
            yield None
            return
        from imagefs.repository.images import Images  # which most starts need not load
        from imagefs.repository.snapshots import Snapshots
        from imagefs.repository.store import open_repository

        with contextlib.closing(open_repository(self._store, make=self._make)) as repository:
            yield Snapshots(Images(repository))

    def _read(self, data: bytes) -> Lock | None:
        """None for one that is too old, or none."""
        try:
            document = json.loads(data)
            at = float(document["at"])
            fresh = -_SKEW <= time.time() - at < self._age
            return Lock.from_document(document["lock"]) if fresh else None
        except (ValueError, KeyError, TypeError, RecursionError, FormatError):
            return None


def run_here(question: Question, folder: str, environ: Mapping[str, str], _paths: Sequence[str]) -> str:
    """The output of a resolver on this host. Raises SnapshotError."""
    try:
        done = subprocess.run(
            question.command,
            cwd=folder,
            env={**environ, **QUIET},
            input=question.text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST,
            check=False,
        )
    except OSError as error:
        raise SnapshotError(f"{question.command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SnapshotError(f"what is asked for could not be resolved within {_LONGEST:.0f} s") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        why = (errors or lines or [f"exit status {done.returncode}"])[-1]
        raise SnapshotError(f"what is asked for could not be resolved: {why}")
    return done.stdout


def _document(lock: Lock) -> bytes:
    return json.dumps({"at": time.time(), "lock": lock.to_document()}, sort_keys=True).encode()
