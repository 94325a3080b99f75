"""The soak of writers: a writer or the mount's worker is killed at any point of a version, and the file stays whole.

After each death the file must be a complete version: the last one published, or the one that was being written when all
of it had been. Meanwhile somebody reads it over and over, and must never see anything else. At the end `stripefs gc`
must find what the deaths left, remove it, and then find nothing; the file must be what it was.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.soak.writers import FILE, Outcome, outcomes, version
from tests.support.checked_content import CELL, content, difference
from tests.support.checkout import CHECKOUT
from tests.tools.command import PATIENCE, REPLACED, Live, Place, eventually

__all__ = ["Death", "WriterFailed", "make_deaths", "soak_writers"]


_YOUNG = 240.0
"""Seconds, more than the two minutes for which gc spares everything even with --force."""

_EXPECTED = (REPLACED, "its writer was killed", "what was not published is lost", "has no version yet")
"""Log lines that tell of the deaths."""

_GONE = (errno.ESTALE, errno.EIO)
"""Permitted errors of reading a version that was replaced meanwhile."""


class WriterFailed(Exception):
    """A writer or the mount did something that it must not do."""


@dataclass(frozen=True, slots=True)
class Death:
    """kind: writer or worker. place: how far into a version, from 0 to 1. delay in seconds, 0: at that very step."""

    kind: str
    place: float
    delay: float


def make_deaths(seed: int, writers: int, workers: int) -> list[Death]:
    """So many of each kind in an order that follows from the seed. Pure."""
    rng = random.Random(seed)
    kinds = ["writer"] * writers + ["worker"] * workers
    rng.shuffle(kinds)
    return [Death(kind, rng.random(), rng.choice((0.0, rng.uniform(0, 0.02)))) for kind in kinds]


def soak_writers(
    place: Place,
    source: str,
    deaths: list[Death],
    *,
    seed: int,
    say: Callable[[str], None],
    options: tuple[object, ...] = (),
    age: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Inflict `deaths` on writers of a mount of `source`, which is empty; a summary in JSON's terms.

    age: called before gc, to make what is there old; else that is waited for.

    Raises WriterFailed or AssertionError.
    """
    place.forgive(*_EXPECTED)
    begun = time.monotonic()
    live = place.mount(source, "--rw", *options)
    trial = _Trial(live, seed)
    with trial.watched():
        trial.write(until=1)
        for number, death in enumerate(deaths, 1):
            what = trial.writer_dies(death) if death.kind == "writer" else trial.worker_dies(death)
            say(f"{number:4d} {time.monotonic() - begun:6.0f} s  {what}; {trial.seen} whole versions read")
        trial.expect({Outcome(trial.last)})
    live.umount()
    age()
    _collect(place, source, say)
    again = place.mount(source, *options)
    trial.live = again
    trial.expect({Outcome(trial.last)})
    again.umount()
    if complaints := place.complaints():
        raise WriterFailed("unexpected in the mount's log:\n" + "\n".join(complaints))
    return {
        "seed": seed,
        "deaths": {kind: sum(death.kind == kind for death in deaths) for kind in ("writer", "worker")},
        "versions": trial.last,
        "bytes": sum(version(seed, number).length for number in range(trial.last + 1)),
        "read_whole": trial.seen,
        "wrong": 0,
        "seconds": round(time.monotonic() - begun),
    }


class _Trial:
    def __init__(self, live: Live, seed: int) -> None:
        self.live = live
        self.last = -1
        """The version that stands."""
        self.seen = 0
        self._seed = seed
        self._newest = 0  # that may be seen
        self._over = threading.Event()
        self._problem: list[str] = []

    def write(self, *, until: int) -> None:
        """Versions up to `until` (excluded), undisturbed."""
        with self._writer(until, {}) as writer:
            self._published(writer, until)

    def writer_dies(self, death: Death) -> str:
        doomed = self.last + 1
        script = version(self._seed, doomed)
        step = min(int(death.place * (len(script.steps) + 1)), len(script.steps))
        with self._writer(doomed + 1, {"die": [doomed, step, death.delay]}) as writer:
            told = writer.communicate(timeout=PATIENCE)[0]
        allowed = outcomes(script, step, exact=not death.delay)
        if death.delay and '"published"' in told:
            allowed = {Outcome(doomed)}  # it was through before the signal came
        elif "failed" in told or writer.returncode != -9:
            raise WriterFailed(f"a writer of version {doomed} ended with {writer.returncode}: {told}")
        found = self.expect(allowed)
        self.last = found.file
        if found.beside is not None:
            os.unlink(self.live.path / f"{FILE}.tmp")
        where = script.steps[step].what if step < len(script.steps) else "end"
        return f"writer of version {doomed} killed at step {step} of {len(script.steps)} ({where}), {self.last} stands"

    def worker_dies(self, death: Death) -> str:
        doomed = self.last + 1
        script = version(self._seed, doomed)
        step = min(int(death.place * (len(script.steps) + 1)), len(script.steps))
        with self._writer(doomed + 2, {"tell": [doomed, step]}) as writer:
            assert writer.stdout is not None
            failed: list[dict[str, Any]] = []
            for line in writer.stdout:
                message = json.loads(line)
                self._note(message)
                failed += [message] if "failed" in message else []
                if "at" in message and step >= 0:
                    time.sleep(death.delay)
                    self.live.kill_worker()
                    step = -1
            if writer.wait(PATIENCE):
                raise WriterFailed(f"the writer gave up at version {self.last + 1} after a worker's death")
        if len(failed) > 1:
            raise WriterFailed(f"{len(failed)} attempts failed after one death of a worker: {failed}")
        self.expect({Outcome(doomed + 1)})
        return f"worker killed at version {doomed}, {len(failed)} attempts failed, {self.last} stands"

    def expect(self, allowed: set[Outcome]) -> Outcome:
        """The present state, which must be one of these. The file beside may take a moment to go."""
        if self._problem:
            raise WriterFailed(self._problem[0])

        def find() -> Outcome | None:
            try:
                found = Outcome(self._read(FILE) or 0, self._read(f"{FILE}.tmp"))
            except OSError as error:
                if error.errno != errno.EBUSY:  # a file without a version whose writer the kernel is taking apart
                    raise
                return None
            return found if found in allowed else None

        try:
            reached = eventually(find, f"one of {allowed}", patience=30)
            assert reached is not None
            return reached
        except AssertionError:
            found = Outcome(self._read(FILE) or 0, self._read(f"{FILE}.tmp"))
            raise WriterFailed(f"{found} stands where it must be one of {allowed}") from None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Somebody reads the file over and over meanwhile."""
        watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join(PATIENCE)
        if self._problem:
            raise WriterFailed(self._problem[0])

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                self.seen += self._read(FILE) is not None
            except OSError as error:
                first = error.errno == errno.EBUSY and self.last < 0  # there is no version that could be read yet
                if error.errno not in _GONE and not first:
                    self._problem.append(f"reading the file failed: {error}")
                    return
            except WriterFailed as error:
                self._problem.append(str(error))
                return
            self._over.wait(0.02)

    def _read(self, name: str) -> int | None:
        """The number of the version that the file is, whole; None where there is none. Raises WriterFailed, OSError."""
        oldest = max(0, self.last)
        try:
            with open(self.live.path / name, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                data = b"".join(iter(lambda: file.read(1 << 20), b""))
        except FileNotFoundError:
            return None
        for number in range(oldest, self._newest + 1):
            wanted = version(self._seed, number)
            if wanted.length == len(data) and data.startswith(content(wanted.name, 0, min(CELL, wanted.length))):
                if problem := difference(data, wanted.name, 0):
                    raise WriterFailed(f"{name}: {problem}")
                return number
        raise WriterFailed(
            f"{name}: {len(data)} bytes that begin with {data[:CELL]!r} "
            f"are no whole version of {oldest} to {self._newest}"
        )

    def _published(self, writer: subprocess.Popen[str], until: int) -> None:
        assert writer.stdout is not None
        for line in writer.stdout:
            self._note(json.loads(line))
        if writer.wait(PATIENCE) or self.last != until - 1:
            raise WriterFailed(f"an undisturbed writer ended with {writer.returncode} after version {self.last}")

    def _note(self, message: dict[str, Any]) -> None:
        self.last = message.get("published", self.last)

    @contextlib.contextmanager
    def _writer(self, until: int, more: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
        self._newest = until - 1
        wanted = {"folder": str(self.live.path), "seed": self._seed, "first": self.last + 1, "until": until, **more}
        command = [sys.executable, "-m", "tests.soak.writers", json.dumps(wanted)]
        with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as writer:
            try:
                yield writer
            finally:
                if writer.poll() is None:
                    writer.kill()


def _collect(place: Place, source: str, say: Callable[[str], None]) -> None:
    """gc removes what the deaths left, as soon as it is old enough for --force; a further one finds nothing."""

    def nothing_young() -> bool:
        report = _gc(place, source, "--force")
        removed.append(report["removed"])
        return not set(report["kept"]) - {"referenced"}

    removed: list[int] = []
    eventually(nothing_young, "the end of what gc spares", patience=_YOUNG)
    say(f"gc removed {sum(removed)} things")
    again = _gc(place, source, "--force", "--dry-run")
    if again["removed"] or again["recoverable"]:
        raise WriterFailed(f"gc still finds something: {again}")


def _gc(place: Place, source: str, *options: str) -> dict[str, Any]:
    done = place.run("gc", source, "--json", *options)
    if done.returncode:
        raise WriterFailed(f"gc failed: {done.stdout} {done.stderr}")
    return dict(json.loads(done.stdout))
