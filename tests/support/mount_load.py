"""Readers and writers that use a mount, compare every byte, and tell of every error."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.soak.crowd import Crowd
from tests.support.checked_content import content, difference
from tests.support.waiting import eventually

__all__ = ["MountLoad"]

_FILES = 8
_NAMES = 600
_PIECE = 128 << 10


class MountLoad:
    """Load on a mount, whose source `prepare` fills before.

    problems: listings that lack names, written files that came back as other bytes, and calls that failed. lost: the
    names and errnos of files whose writers got an error, from `write`, `fsync` or `close`. published: the version of
    each name that was renamed after its `close` answered. done: counts of what was done, by kind.
    """

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._readers: Crowd
        self.problems: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.published: dict[str, str] = {}
        self.done: Counter[str] = Counter()

    @staticmethod
    def prepare(source: Path) -> None:
        """Files to read, and a directory of many names."""
        (source / "read").mkdir()
        for number in range(_FILES):
            (source / "read" / f"r{number}").write_bytes(content(f"r{number}", 0, _size(number)))
        (source / "names").mkdir()
        for number in range(_NAMES):
            (source / "names" / f"{number}").touch()
        (source / "written").mkdir()

    @contextlib.contextmanager
    def running(self, *, writers: int) -> Iterator[None]:
        """Readers of files and of names, and `writers` writers; all have begun, and the end of the block ends them.

        Raises ReaderFailed for a read that failed or brought other bytes.
        """
        tasks: list[Callable[[], None]] = [self._list_names, self._walk_names]
        tasks += [lambda number=number: self._write_files(number) for number in range(writers)]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._contain, args=(task,), daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()
        kinds = ("sequential", "pread", "mmap")
        try:
            with Crowd(self._mount / "read", len(kinds), kinds=kinds, pause=0.01) as self._readers:
                self.wait_for_more()
                yield
                self._readers.finish()
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join(120)
        self.problems += [f"{thread.name} hangs" for thread in self._threads if thread.is_alive()]

    def wait_for_more(self) -> None:
        """Wait until every kind of load has done more than now."""
        before = dict(self.done)
        self._readers.get_on()
        kinds = ("listed", "walked", "written")

        def more() -> bool:
            return bool(self.problems) or all(self.done[kind] > before.get(kind, 0) + 1 for kind in kinds)

        eventually(more, f"more of all load than {before}", 120)

    def written(self) -> Iterator[tuple[str, str, int]]:
        """Name, version and length of each file whose rename answered."""
        for name, version in sorted(self.published.items()):
            yield f"written/{name}", version, _size(int(version.rpartition("-")[2]))

    def read(self) -> Iterator[tuple[str, str, int]]:
        """Name, version and length of each file that was there before."""
        for number in range(_FILES):
            yield f"read/r{number}", f"r{number}", _size(number)

    def _contain(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # noqa: BLE001  reported by the test
            self.problems.append(f"{task}: {error!r}")

    # Names

    def _list_names(self) -> None:
        wanted = sorted(str(number) for number in range(_NAMES))
        while not self._ended.is_set():
            if sorted(os.listdir(self._mount / "names")) != wanted:
                self.problems.append("a listing lacks names")
            self.done["listed"] += 1
            time.sleep(0.01)

    def _walk_names(self) -> None:
        """A directory that stays open while its entries are read slowly."""
        while not self._ended.is_set():
            with os.scandir(self._mount / "names") as entries:
                found = []
                for entry in entries:
                    found.append(entry.name)
                    time.sleep(0.001)
            if sorted(found) != sorted(str(number) for number in range(_NAMES)):
                self.problems.append("a directory that was read slowly lacks names, or has one twice")
            self.done["walked"] += 1

    # Writing

    def _write_files(self, number: int) -> None:
        folder = self._mount / "written"
        for count in itertools.count():
            if self._ended.is_set():
                return
            version, temporary = f"w{number}-{count}", folder / f"{number}.tmp"
            if self._write(temporary, version, _size(count), durable=count % 3 == 0):
                name = f"{number}-{count % _FILES}"
                os.replace(temporary, folder / name)
                self.published[name] = version
                data = (folder / name).read_bytes()
                if len(data) != _size(count):
                    self.problems.append(f"{len(data)} bytes of {version}, of {_size(count)}")
                elif found := difference(data, version, 0):
                    self.problems.append(found)
                self.done["written"] += 1
            (folder / f"d{number}").mkdir()
            (folder / f"d{number}").rename(folder / f"e{number}")
            (folder / f"e{number}").rmdir()
            time.sleep(random.uniform(0, 0.05))

    def _write(self, path: Path, version: str, size: int, *, durable: bool) -> bool:
        """Write a file; False where its writer got an error, which `lost` then has."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        closed = False
        try:
            for offset in range(0, size, _PIECE):
                os.write(descriptor, content(version, offset, min(_PIECE, size - offset)))
            if durable:
                os.fsync(descriptor)
            closed = True
            os.close(descriptor)
        except OSError as error:
            self.lost.append((version, errno.errorcode[error.errno or 0]))
            if not closed:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            return False
        return True


def _size(number: int) -> int:
    """The length of a file: no two of a row alike, most no multiple of a page."""
    return 1000 + (number % _FILES) * 400_003
