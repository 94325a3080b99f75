"""The number of NameNode calls for a small file: a count that grows says that something is asked twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import stripefs
from stripefs.errors import Busy, StoreError
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.store import HdfsStore
from stripefs.write.file_lock import acquire, lock_path, read_lock
from tests.hdfs.conftest import populated
from tests.tools.hdfs import HdfsInstance

pytestmark = [pytest.mark.cluster]

FILES = 10
ROUNDS = 3
WRITTEN, READ = 6.5, 3.5
"""For each file; 6 and 3 were counted. A file that is written is looked for. The lock of the last file gets its text,
and is renamed. The bytes are looked at when they are complete, and renamed; the lock is compared before.
A file that is read is looked at, located, and confirmed when it was read."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every question and change that WebHDFS was asked for."""
    asked: list[str] = []
    first = NameNodeRest._first

    def counted(rest: NameNodeRest, method: str, target: str, where: str) -> dict[str, Any]:
        asked.append(f"{method} {target}")
        return first(rest, method, target, where)

    monkeypatch.setattr(NameNodeRest, "_first", counted)
    return asked


def fewest(asked: list[str], work: Callable[[int], object]) -> float:
    """For each file in the best of some rounds: locks are renewed and hosts are looked up now and then."""
    counts = []
    for number in range(ROUNDS):
        asked.clear()
        work(number)
        counts.append(len(asked) / FILES)
    return min(counts)


def test_questions_for_a_small_file(hdfs: HdfsInstance, asked: list[str]) -> None:
    fs = stripefs.connect(f"{hdfs.url}/calls", layout="plain")

    def write(number: int) -> None:
        for file in range(FILES):
            with fs.open(f"f{number}-{file}", "wb") as opened:
                opened.write(bytes([file]) * 20_000)

    def read(number: int) -> None:
        for file in range(FILES):
            with fs.open(f"f{number}-{file}") as opened:
                assert opened.read() == bytes([file]) * 20_000

    with populated(hdfs, "/calls"):
        assert fewest(asked, write) <= WRITTEN, "\n".join(asked)
        assert fewest(asked, read) <= READ, "\n".join(asked)


def test_questions_for_a_small_file_that_was_listed(hdfs: HdfsInstance, asked: list[str]) -> None:
    """As a mount opens it after a listing: its locations, and whether it is the same once its bytes are here."""

    def read(number: int) -> None:
        for file in range(FILES):
            name = b"f%d-%d" % (number, file)
            handle = store.open(b"/" + name, listed[name].identity)
            data = handle.read_now(0, 20_000)
            handle.close()
            if number:  # in the first round DataNodes may have granted no data transfer yet
                assert data == name * 5000

    settings = StoreSettings(url=f"{hdfs.url}/listed")
    with populated(hdfs, "/listed"), contextlib.closing(HdfsStore(settings)) as store:
        for file in range(FILES * ROUNDS):
            name = b"f%d-%d" % divmod(file, FILES)
            store.put(b"/" + name, [name * 5000])
            assert store.open(b"/" + name).read(0, 4) == name
        listed = {status.name: status for batch in store.scandir(b"/") for status in batch}
        assert len(listed) == FILES * ROUNDS
        assert fewest(asked, read) == 2, "\n".join(asked)


@pytest.mark.parametrize("refused", [False, True])
def test_a_lock_has_no_block_unless_attributes_are_refused(
    hdfs: HdfsInstance, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("support for extended attributes is disabled")

    if refused:
        monkeypatch.setattr(NameNodeRest, "set_attribute", refuse)
    settings = StoreSettings(url=hdfs.url, hdfs_user="root")
    with contextlib.closing(HdfsStore(settings)) as store:
        lock = acquire(store, b"/attributed", ["0123456789abcdef"], "mount/1")
        found = store.stat(lock_path(b"/attributed"))
        assert bool(found.length) == refused
        assert found.identity == lock.status.identity
        assert read_lock(store, lock_path(b"/attributed")) == lock.document
        lock.renew()
        lock.assert_held()
        with pytest.raises(Busy, match="being written by"):
            acquire(store, b"/attributed", [], "other/1")
        after = acquire(store, b"/attributed", [], "mount/2")  # the next worker of the same mount
        assert "0123456789abcdef" in after.document.versions
        lock.release()
        after.assert_held()
        after.release()
        assert read_lock(store, lock_path(b"/attributed")) is None
