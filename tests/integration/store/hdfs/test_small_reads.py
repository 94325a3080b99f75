"""Small reads of a file with a replica on a DataNode that is silent: they come from another one, and it is avoided."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from stripefs.errors import NotFound
from stripefs.store.hdfs import datanode_read, native
from stripefs.store.hdfs.store import HdfsStore
from tests.contract.putting import read as read_whole
from tests.support.waiting import eventually
from tests.tools.fake_hdfs import FakeCluster, Manner, Request, good, settings_for

DOCUMENT = b"a document of a few bytes"
TIMEOUT = 30.0
"""Seconds after which a DataNode counts as silent: far more than any test here takes, so none of them waits for it."""


class Library:
    """As hdfs-native's Client. Reads of a file wait for the silent DataNode until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.begun = 0

    def read(self, path: str) -> Library:
        return self

    def __len__(self) -> int:
        return len(DOCUMENT)

    def read_range(self, offset: int, length: int) -> bytes:
        self.begun += 1
        self.answers.wait()
        return DOCUMENT[offset : offset + length]

    def get_file_info(self, path: str) -> Info:
        return Info()


class Info:
    path, isdir, length, modification_time, access_time = "/file", False, len(DOCUMENT), 1_700_000_000_000, 0
    permission, owner, group, blocksize, replication = 0o644, "o", "g", 1 << 20, 2


class Silence:
    """Manner of a DataNode that takes connections and says nothing until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, request: Request, wanted: bytes) -> None:
        self.over.wait()
        request.close_connection = True


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    monkeypatch.setattr(native, "Client", lambda *_: library)
    monkeypatch.setattr(native, "check_rpc", lambda address, timeout: None)
    monkeypatch.setattr(native, "_WARM_UPS", 0)
    monkeypatch.setattr(datanode_read, "PATIENCE", 0.05)
    monkeypatch.setattr(datanode_read, "SILENT", 0.3)
    yield library
    library.answers.set()


@contextmanager
def silent_first(*others: Manner) -> Iterator[tuple[FakeCluster, HdfsStore]]:
    """A store of one file whose first replica is on a silent DataNode, and the others on those that are given."""
    silence = Silence()
    with (
        FakeCluster.running(DOCUMENT, silence, *others) as cluster,
        closing(HdfsStore(settings_for(cluster, transport="auto", host_timeout=TIMEOUT))) as store,
    ):
        try:
            yield cluster, store
        finally:
            silence.over.set()


def read_manifest(store: HdfsStore) -> bytes:
    return bytes(store.read_small(b"/file", 1000))


def list_manifests(store: HdfsStore) -> bytes:
    answers = store.read_small_files([b"/file"] * 8, 1000)
    assert len({bytes(answer) for answer in answers}) == 1  # type: ignore[arg-type]  # none is an error
    return bytes(answers[0])  # type: ignore[arg-type]


def read_document(store: HdfsStore) -> bytes:
    return bytes(store.get(b"/file"))


def read_sums(store: HdfsStore) -> bytes:
    return bytes(store.open_checked(b"/file", len(DOCUMENT)).read(0, len(DOCUMENT)))


def open_and_read(store: HdfsStore) -> bytes:
    return read_whole(store, b"/file")


WAYS = [read_manifest, list_manifests, read_document, read_sums, open_and_read]


@pytest.mark.parametrize("read", WAYS)
def test_another_replica_answers(library: Library, read: type[read_manifest]) -> None:
    with silent_first(good) as (cluster, store):
        assert read(store) == DOCUMENT
        silent = cluster.datanodes[0].name
        eventually(lambda: store.health.reason(silent), "the silent one to be noted")
        assert "0.3 s" in store.health.reason(silent)
        asked, begun = len(cluster.datanodes[0].served), library.begun
        for again in WAYS:
            assert again(store) == DOCUMENT
        assert (len(cluster.datanodes[0].served), library.begun) == (asked, begun)


def test_an_open_does_not_wait_for_its_first_sign_of_a_datanode(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_WARM_UPS", 3)
    monkeypatch.setattr(native, "_WARM_UP", 0.05)
    with silent_first() as (_, store):
        store.open(b"/file").close()
        assert library.begun == 1
        library.answers.set()
        eventually(lambda: not store._native._warming, "the answer to be heard")  # type: ignore[union-attr]
        store.open(b"/file").close()
        assert library.begun == 1


@pytest.mark.parametrize("read", [read_manifest, read_sums, read_document])
def test_the_only_replica_is_waited_for(library: Library, read: type[read_manifest]) -> None:
    with silent_first() as (cluster, store):
        got: list[bytes] = []
        reading = threading.Thread(target=lambda: got.append(read(store)))
        reading.start()
        eventually(lambda: library.begun > 1 or cluster.datanodes[0].served, "a wait beyond the first")
        assert not got
        library.answers.set()
        cluster.datanodes[0].manner.over.set()  # type: ignore[attr-defined]
        reading.join()
        assert got == [DOCUMENT]


def test_when_all_are_silent_the_first_read_is_waited_for(library: Library) -> None:
    also = Silence()
    with silent_first(also) as (cluster, store):
        got: list[bytes] = []
        reading = threading.Thread(target=lambda: got.append(read_manifest(store)))
        reading.start()
        eventually(lambda: library.begun > 1, "a read by hdfs-native after those by WebHDFS")
        library.answers.set()
        reading.join()
        also.over.set()
        assert got == [DOCUMENT]
        assert all(store.health.reason(datanode.name) for datanode in cluster.datanodes)


@pytest.mark.parametrize("transport", ["auto", "webhdfs"])
def test_a_small_read_of_a_name_that_hdfs_cannot_have(library: Library, transport: str) -> None:
    library.answers.set()
    with (
        FakeCluster.running(DOCUMENT, good) as cluster,
        closing(HdfsStore(settings_for(cluster, transport=transport))) as store,
    ):
        with pytest.raises(NotFound):
            store.read_small(b"/\xff", 1000)
        [refused, answer] = store.read_small_files([b"/\xff", b"/file"], 1000)
        assert isinstance(refused, NotFound)
        assert answer == DOCUMENT
