"""Names that only one may make: O_CREAT|O_EXCL, mkdir and a lock-file mutex over two mounts of one source.

Two mounts stand for two hosts: each has locks, an inode table and a kernel cache of its own. Most tries are over a
local directory, a share is over a real HDFS, where a race takes ten times as long. The Python API races a mount, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import stripefs
from tests.soak.right import Context, Violation
from tests.support.waiting import eventually
from tests.support.written_mounts import writable
from tests.tools.mounts import Mounts

LANES = 4
"""Directories in which races run at the same time: within one the kernel makes one name after the other."""

LATEST = 0.03
"""Seconds by which the second may come late: from before the winner's open to after its close."""


@dataclass(frozen=True)
class Share:
    """Full counts of one kind of store."""

    files: int
    python: int
    directories: int
    acquisitions: int


LOCAL = Share(files=8_500, python=500, directories=8_000, acquisitions=9_000)
HDFS = Share(files=900, python=100, directories=2_000, acquisitions=1_000)


def check(context: Context, *, stores: tuple[str, ...] = ("local", "hdfs")) -> dict[str, int | float]:
    """Counts the races of each kind, and how often the one who came second won nothing."""
    counters: dict[str, int | float] = {}
    for store in stores:
        share = LOCAL if store == "local" else HDFS
        folder = context.folder / store
        folder.mkdir()
        with _mounted(context, store, folder) as (url, places):
            races = _Races(context.random(store), places)
            context.say(f"races on {store}")
            counters[f"{store}_exclusive_creates"] = races.run("file", context.count(share.files), _create, _create)
            in_python = partial(_create_in_python, stripefs.connect(url), places[1])
            counters[f"{store}_exclusive_creates_in_python"] = races.run(
                "python", context.count(share.python), _create, in_python
            )
            counters[f"{store}_directories"] = races.run("folder", context.count(share.directories), os.mkdir, os.mkdir)
            counters[f"{store}_mutex_acquisitions"] = _mutex(places, context.count(share.acquisitions))
    return counters


@contextlib.contextmanager
def _mounted(context: Context, store: str, folder: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """The source's URL and two mounts of it."""
    mounts = Mounts(folder)
    mounts.forgive("the lock of", "may yet be published")
    url = mounts.url() if store == "local" else f"{context.hdfs().url}/exclusive-{os.getpid()}"
    if store != "local":
        stripefs.connect(context.hdfs().url).mkdir(f"exclusive-{os.getpid()}")
    try:
        # So that the kernel asks again at once: what it remembers of a name makes a mutex late, not wrong.
        both = [mounts.start(writable(mounts, url, attr_timeout=0.001)).wait_ready() for _ in range(2)]
        yield url, (both[0].path, both[1].path)
    finally:
        mounts.close()


class _Races:
    def __init__(self, random: Random, places: tuple[Path, Path]) -> None:
        self._random = random
        self._places = places

    def run(self, kind: str, count: int, first: Callable[[str], object], second: Callable[[str], object]) -> int:
        """Two make one name, `count` times; raises Violation unless one alone succeeds. The number of races."""
        lanes: list[tuple[str, list[float]]] = []
        for number in range(LANES):
            folder = f"{kind}-{number}"
            os.mkdir(self._places[0] / folder)
            delays = [self._delay() for _ in range(number, count, LANES)]
            lanes.append((folder, delays))
        for folder, _ in lanes:
            eventually((self._places[1] / folder).exists, f"{folder} on the other mount")
        with ThreadPoolExecutor(LANES) as threads:
            running = [threads.submit(self._lane, folder, delays, (first, second)) for folder, delays in lanes]
            return sum(lane.result() for lane in running)

    def _delay(self) -> float:
        """Two in three begin together."""
        return self._random.choice((0, 0, 1)) * self._random.uniform(-LATEST, LATEST)

    def _lane(self, folder: str, delays: list[float], makers: tuple[Callable[[str], object], ...]) -> int:
        won: list[list[bool]] = [[], []]
        together = threading.Barrier(2)

        def side(number: int) -> None:
            make = makers[number]
            try:
                for index, delay in enumerate(delays):
                    together.wait()
                    time.sleep(max(0.0, delay if number else -delay))
                    won[number].append(_succeeds(make, str(self._places[number] / folder / str(index))))
            except BaseException:
                together.abort()
                raise

        with ThreadPoolExecutor(2) as threads:
            sides = [threads.submit(side, number) for number in range(2)]
        for error in filter(None, [done.exception() for done in sides]):
            if not isinstance(error, threading.BrokenBarrierError):  # which only says that the other one failed
                raise error
        for index, winners in enumerate(zip(*won, strict=True)):
            if sum(winners) != 1:
                raise Violation(f"{folder}/{index} was made by {sum(winners)} of 2, {delays[index]:+.4f} s apart")
            path = self._places[0] / folder / f"{index}"
            if path.is_file() and path.read_bytes() != os.fsencode(self._places[winners.index(True)]):
                raise Violation(f"{path} holds what the one who was refused wrote")
        return len(delays)


def _succeeds(make: Callable[[str], object], path: str) -> bool:
    try:
        make(path)
    except FileExistsError:
        return False
    return True


def _create(path: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        os.write(descriptor, os.fsencode(Path(path).parent.parent))
    finally:
        os.close(descriptor)


def _create_in_python(api: stripefs.FileSystem, place: Path, path: str) -> None:
    with api.open(str(Path(path).relative_to(place)), "xb") as file:
        file.write(os.fsencode(place))


def _mutex(places: tuple[Path, Path], count: int) -> int:
    """Two programs on each mount take one lock file in turn; raises Violation where two hold it. The count."""
    holders: list[str] = []
    taken = 0
    over = threading.Event()

    def program(name: str, lock: str) -> None:
        nonlocal taken
        try:
            while not over.is_set():
                try:
                    descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                except FileExistsError:
                    time.sleep(0.001)
                    continue
                holders.append(name)
                os.close(descriptor)
                if holders != [name]:
                    raise Violation(f"the mutex was held by {holders} at once, after {taken} acquisitions")
                taken += 1
                if taken >= count:
                    over.set()
                holders.remove(name)
                os.unlink(lock)
        finally:
            over.set()

    with ThreadPoolExecutor(4) as threads:
        running = [
            threads.submit(program, f"program {number} of {place}", str(place / "mutex"))
            for place in places
            for number in range(2)
        ]
        for one in running:
            one.result()
    return taken
