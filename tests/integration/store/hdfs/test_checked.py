"""Files whose reader checks every byte: what opening and reading them asks of the NameNode, and what is not found."""

from __future__ import annotations

import pytest

from stripefs.errors import HostFailed, NotFound, ServiceDown, StaleVersion
from stripefs.store.hdfs.store import HdfsStore
from tests.tools.fake_hdfs import DATA, FakeCluster, Request, good, running, settings_for


def resets(request: Request, wanted: bytes) -> None:
    request.reset()


def test_one_question_for_all_of_a_file() -> None:
    with running(good) as (cluster, store):
        store.open(b"/file").read(0, 10)  # the DataNodes' name of the NameNode is known from then on
        cluster.namenode.asked.clear()
        handle = store.open_checked(b"/file", len(DATA))
        assert handle.status.length == len(DATA)
        assert cluster.namenode.asked == []
        [block] = handle.locate(0, len(DATA))
        for at in range(0, len(DATA), 1 << 20):
            assert handle.read(at, 1 << 20, host=block.hosts[0]) == DATA[at : at + (1 << 20)]
        assert handle.read(5, 100) == DATA[5:105]
        assert cluster.namenode.asked == ["GET_BLOCK_LOCATIONS"]


def test_what_stands_there_now_is_read() -> None:
    with running(good) as (cluster, store):
        handle = store.open_checked(b"/file", len(DATA))
        cluster.namenode.mtime += 1
        assert handle.read(0, 10) == DATA[:10]


def test_a_file_that_is_not_there() -> None:
    with running(good) as (cluster, store):
        handle = store.open_checked(b"/file", len(DATA))
        cluster.namenode.exists = False
        with pytest.raises(NotFound):
            handle.locate(0, 1)
        with pytest.raises(NotFound):
            handle.read(0, 10)


def test_a_file_that_goes_while_it_is_read() -> None:
    with running(good) as (cluster, store):
        handle = store.open_checked(b"/file", len(DATA))
        assert handle.read(0, 10) == DATA[:10]
        cluster.datanodes[0].manner = lambda request, _: request.refuse("java.io.FileNotFoundException", "gone", 404)
        with pytest.raises(NotFound):
            handle.read(10, 10)


def test_a_file_that_is_shorter() -> None:
    with running(good) as (_, store), pytest.raises(StaleVersion):
        store.open_checked(b"/file", len(DATA) + 1).locate(0, len(DATA) + 1)


def test_a_host_that_fails_and_a_namenode_that_is_away() -> None:
    with running(resets) as (cluster, store):
        handle = store.open_checked(b"/file", len(DATA))
        [block] = handle.locate(0, 1)
        with pytest.raises(HostFailed):
            handle.read(0, 10, host=block.hosts[0])
        cluster.namenode.refusal = ("org.apache.hadoop.ipc.StandbyException", "not active")
        with pytest.raises(ServiceDown):
            handle.read(0, 10, host=block.hosts[0])


def test_a_store_that_cannot_choose_opens_as_ever() -> None:
    with FakeCluster.running(DATA, good) as cluster:
        store = HdfsStore(settings_for(cluster))
        store.chooses_host = False
        handle = store.open_checked(b"/file", len(DATA))
        assert handle.status.file_id
        store.close()
