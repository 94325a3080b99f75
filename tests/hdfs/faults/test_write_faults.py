"""Faults met by a writer through a mount of HDFS: a full quota, safe mode, clocks that differ, a trusted pool."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stripefs.format.lock_and_record import LEASE
from tests.support.checked_content import content
from tests.support.refusals import errno_of, refused
from tests.support.wall_clock import Clock
from tests.tools.command import REPLACED, Live, Place, eventually
from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import drop_cache
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20
OLD = content("old", 0, 9 * MIB)
NEW = content("new", 0, 40 * MIB)
TRUNCATE = os.O_WRONLY | os.O_TRUNC
YEAR = 365 * 24 * 3600
LAYOUTS = ("concat", "striped", "plain")


class Folder:
    """A directory of an instance, which holds nothing, and mounts of it."""

    def __init__(self, instance: HdfsInstance, name: str) -> None:
        self.path = f"/{name}"
        self.url = f"{instance.url}{self.path}"
        self.web = WebHdfs(instance.web)
        self.populate = HdfsPopulate(self.web, self.path)

    def mount(self, place: Place, *options: object, below: str = "") -> Live:
        place.forgive("big files are written as")
        fast = ("--rw", "--attr-timeout", "0s", "--unit", "1MiB", "--write-memory", "32MiB")
        return place.mount(self.url + below, *fast, *options)

    def limit(self, space: int) -> None:
        self.web("PUT", "SETQUOTA", self.path, namespacequota=1000, storagespacequota=space)

    def hidden(self, below: str = "") -> list[str]:
        listed = self.web("GET", "LISTSTATUS", self.path + below)["FileStatuses"]["FileStatus"]
        return [entry["pathSuffix"] for entry in listed if ".stripefs-" in entry["pathSuffix"]]

    def run_out(self, lock: str) -> None:
        """Let the lease of this lock be over."""
        self.populate.set_times(lock.encode(), int((time.time() - LEASE - 5) * 1000))

    def gc(self, place: Place, *options: str) -> dict[str, object]:
        done = place.run("gc", self.url, "--json", *options)
        assert done.returncode == 0, done
        return dict(json.loads(done.stdout))


@pytest.fixture
def folder(hdfs: HdfsInstance, request: pytest.FixtureRequest) -> Iterator[Folder]:
    made = Folder(hdfs, request.node.name)
    yield made
    made.populate.delete(b"")


@pytest.fixture
def fault_folder(fault_hdfs: HdfsInstance, request: pytest.FixtureRequest) -> Iterator[Folder]:
    made = Folder(fault_hdfs, request.node.name)
    yield made
    made.populate.delete(b"")


def outcomes(*calls: Callable[[], object]) -> list[int]:
    """The error numbers of those calls that failed."""
    return [number for number in map(errno_of, calls) if number]


@pytest.mark.parametrize(("layout", "told"), [("concat", "write"), ("striped", "fsync"), ("plain", "close")])
def test_a_full_quota(folder: Folder, place: Place, layout: str, told: str) -> None:
    """The next call, whichever it is, says EDQUOT, none says that all is well, and the old version stays."""
    place.forgive("exceeded", "is not published")
    live = folder.mount(place, "--layout", layout)
    (live.path / "file").write_bytes(OLD)
    folder.limit(len(OLD) + 5 * MIB)
    writer = os.open(live.path / "file", TRUNCATE)
    assert outcomes(*(lambda at=at: os.write(writer, NEW[at : at + MIB]) for at in range(0, 4 * MIB, MIB))) == []
    met: list[int] = []
    if told == "write":
        for at in range(4 * MIB, len(NEW), MIB):
            met = met or outcomes(lambda at=at: os.write(writer, NEW[at : at + MIB]))  # type: ignore[misc]
            time.sleep(0.05)
        assert met == [errno.EDQUOT]
        outcomes(lambda: os.close(writer))
    else:
        failed = outcomes(*(lambda at=at: os.write(writer, NEW[at : at + MIB]) for at in range(4 * MIB, 16 * MIB, MIB)))
        assert set(failed) <= {errno.EDQUOT}
        failed += outcomes(lambda: os.fsync(writer)) if told == "fsync" else []
        failed += outcomes(lambda: os.close(writer))
        assert set(failed) == {errno.EDQUOT}
    drop_cache(live.path / "file")
    assert (live.path / "file").read_bytes() == OLD
    eventually(lambda: not folder.hidden(), "an end of what was written")
    folder.limit(1 << 40)
    (live.path / "file").write_bytes(NEW)
    assert (live.path / "file").read_bytes() == NEW
    live.umount()


class Writer:
    """A process with a file open; what the test itself has open would hold up every process that it starts."""

    def __init__(self, path: Path, data: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, path, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *words: str) -> None:
        """The next commands: write BYTES, fsync, close."""
        assert self._process.stdin is not None
        self._process.stdin.writelines(f"{word}\n" for word in words)
        self._process.stdin.flush()

    def error(self) -> int:
        """The result of the next command: 0, or the number of its error."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


_WRITER = """
import os, sys
data, at = open(sys.argv[2], "rb").read(), 0
file = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)
for line in sys.stdin:
    word, *size = line.split()
    try:
        if word == "write":
            at += os.write(file, data[at : at + int(size[0])])
        else:
            (os.fsync if word == "fsync" else os.close)(file)
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Callable[[Path], Writer]]:
    """Begins to replace a file by NEW."""
    (tmp_path / "new").write_bytes(NEW)
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(contextlib.closing(Writer(path, tmp_path / "new")))


@pytest.mark.parametrize("layout", ["concat", "striped"])  # a plain file is lost with its one stream
def test_safe_mode_for_a_while(
    fault_hdfs: HdfsInstance, fault_folder: Folder, place: Place, writers: Callable[[Path], Writer], layout: str
) -> None:
    """A writer waits for its end, and loses nothing."""
    place.forgive("safe mode")
    live = fault_folder.mount(place, "--layout", layout)
    (live.path / "file").write_bytes(OLD)
    writer = writers(live.path / "file")
    writer.tell(f"write {4 * MIB}")
    assert writer.error() == 0
    fault_hdfs.safemode(True)
    writer.tell(f"write {8 * MIB}")
    assert writer.error() == 0
    assert (live.path / "file").read_bytes() == OLD
    writer.tell(f"write {len(NEW)}", "close")
    fault_hdfs.safemode(False)
    assert (writer.error(), writer.error()) == (0, 0)
    drop_cache(live.path / "file")
    assert (live.path / "file").read_bytes() == NEW
    live.umount()


def test_safe_mode_that_stays(
    fault_hdfs: HdfsInstance, fault_folder: Folder, place: Place, writers: Callable[[Path], Writer]
) -> None:
    """Writers are told when `--io-timeout` is over; the old versions stay, and can be replaced afterwards."""
    place.forgive("afe mode", "is not published", "stays until it runs out", "no answer within", "could not be renewed")
    live = fault_folder.mount(place, "--io-timeout", "4s")
    for layout in LAYOUTS:
        (live.path / layout).mkdir()
        os.setxattr(live.path / layout, "user.stripefs.layout", layout.encode())
        (live.path / layout / "file").write_bytes(OLD)
    open_files = {layout: writers(live.path / layout / "file") for layout in LAYOUTS}
    for writer in open_files.values():
        writer.tell(f"write {9 * MIB}")
        assert writer.error() == 0
    fault_hdfs.safemode(True)
    for writer in open_files.values():
        writer.tell(f"write {12 * MIB}", "fsync", "close")
    for writer in open_files.values():
        written, synced, closed = (writer.error() for _ in range(3))
        assert written in (0, errno.EIO)
        assert (synced, closed) == (errno.EIO, errno.EIO)
    for layout in LAYOUTS:
        drop_cache(live.path / layout / "file")
        assert (live.path / layout / "file").read_bytes() == OLD
    fault_hdfs.safemode(False)
    for layout in LAYOUTS:
        if ".file.stripefs-lock" in fault_folder.hidden(f"/{layout}"):  # it could not be removed
            fault_folder.run_out(f"/{layout}/.file.stripefs-lock")
        (live.path / layout / "file").write_bytes(NEW)
        assert (live.path / layout / "file").read_bytes() == NEW
    live.umount()


def test_clocks_that_differ(folder: Folder, place: Place) -> None:
    """The NameNode's clock alone decides which lock has run out and what is old enough for gc."""
    place.forgive(REPLACED, "was being written when the worker ended", "looks empty and stays")
    right = folder.mount(place, "--layout", "striped")
    (right.path / "run").mkdir()
    clock = Clock(place)
    for years in (10, -20):
        clock.jump(years * YEAR)
        wrong = folder.mount(place, "--layout", "striped")
        for mine, theirs in ((right, wrong), (wrong, right)):
            with open(mine.path / "run/file", "wb", buffering=0) as writer:
                writer.write(NEW)
                with refused(errno.EBUSY):
                    open(theirs.path / "run/file", "wb").close()
                assert folder.gc(place)["removed"] == 0
            assert (theirs.path / "run/file").read_bytes() == NEW
            (theirs.path / "run/file").unlink()

        _die_writing(wrong, "run/dead")
        assert folder.gc(place, "--force")["removed"] == 0
        with refused(errno.EBUSY):
            open(right.path / "run/dead", "wb").close()
        with refused(errno.ENOTEMPTY):
            (wrong.path / "run").rmdir()
        folder.run_out("/run/.dead.stripefs-lock")
        (wrong.path / "run").rmdir()
        (right.path / "run").mkdir()
        wrong.umount()
    right.umount()


def _die_writing(live: Live, path: str) -> None:
    """Leave what a worker leaves that dies."""
    writer = os.open(live.path / path, os.O_WRONLY | os.O_CREAT)
    os.write(writer, NEW)
    live.kill_worker()
    assert errno_of(os.close, writer) == errno.EIO
