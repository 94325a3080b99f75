"""Versions and shapes on a real cluster: what the conformance suite cannot ask of every store."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest
from hdfs_native import Client, WriteOptions

from stripefs.errors import HostFailed, StaleVersion
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.store import HdfsStore
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

pytestmark = pytest.mark.cluster

MIB = 1 << 20
OLD = random.Random(1).randbytes(2 * MIB)
NEW = random.Random(2).randbytes(2 * MIB)


@pytest.fixture
def populate(hdfs: HdfsInstance) -> Iterator[HdfsPopulate]:
    populate = HdfsPopulate(WebHdfs(hdfs.web), "/versions", block_size=MIB)
    yield populate
    populate.delete(b"")


@pytest.fixture
def settings(hdfs: HdfsInstance) -> StoreSettings:
    return StoreSettings(url=f"{hdfs.url}/versions")


@pytest.fixture(params=["auto", "webhdfs", "native", "native alone"])
def store(populate: HdfsPopulate, settings: StoreSettings, request: pytest.FixtureRequest) -> Iterator[HdfsStore]:
    transport, _, alone = request.param.partition(" ")
    store = HdfsStore(settings._replace(transport=transport, webhdfs_port=1 if alone else 0))
    yield store
    store.close()


@pytest.fixture
def auto(populate: HdfsPopulate, settings: StoreSettings) -> Iterator[HdfsStore]:
    store = HdfsStore(settings)
    yield store
    store.close()


def test_rewritten_in_place_with_the_same_length(store: HdfsStore, populate: HdfsPopulate) -> None:
    """Cut within a block and filled up again: the same inode, block, length, and DataNodes serve it to old readers."""
    populate.write(b"/file", OLD)
    cut = MIB + MIB // 2 + 7
    handle = store.open(b"/file")
    assert handle.read(cut - 10, 20) == OLD[cut - 10 : cut + 10]
    populate.truncate(b"/file", cut)
    populate.append(b"/file", NEW[cut:])
    for offset in (cut - 10, cut, 2 * MIB - 20):
        with pytest.raises(StaleVersion):
            handle.read(offset, 20)
    assert store.open(b"/file").read(cut - 10, 20) == OLD[cut - 10 : cut] + NEW[cut : cut + 10]


def test_a_short_file_rewritten_in_place(auto: HdfsStore, populate: HdfsPopulate) -> None:
    """It is read when it is opened. The version that was seen before is not to be had any more."""
    populate.write(b"/short", OLD[:9000])
    assert auto.open(b"/short").read(0, 9) == OLD[:9]  # the DataNode is known to grant data transfer from now on
    seen = auto.stat(b"/short").identity
    handle = auto.open(b"/short", seen)
    assert handle.read_now(10, 100) == OLD[10:110]
    populate.write(b"/other", OLD[:9000])
    before = auto.stat(b"/other").identity
    for path in (b"/short", b"/other"):
        populate.truncate(path, 5000)
        populate.append(path, NEW[5000:9000])
    assert handle.read_now(0, 9000) == OLD[:9000]
    with pytest.raises(StaleVersion):
        handle.read(0, 9000)
    with pytest.raises(StaleVersion):
        auto.open(b"/other", before)
    assert auto.open(b"/other", auto.stat(b"/other").identity).read(0, 9000) == OLD[:5000] + NEW[5000:9000]


def test_a_short_file_of_a_snapshot(auto: HdfsStore, populate: HdfsPopulate, hdfs: HdfsInstance) -> None:
    """Its inode is that of the file, whose bytes may be others by now."""
    web = WebHdfs(hdfs.web)
    populate.write(b"/kept/file", OLD[:9000])
    web("PUT", "ALLOWSNAPSHOT", "/versions/kept")
    web("PUT", "CREATESNAPSHOT", "/versions/kept", snapshotname="before")
    try:
        populate.truncate(b"/kept/file", 5000)
        populate.append(b"/kept/file", NEW[5000:9000])
        assert auto.open(b"/kept/file").read(0, 9) == OLD[:9]
        path = b"/kept/.snapshot/before/file"
        with contextlib.suppress(StaleVersion):
            handle = auto.open(path, auto.stat(path).identity)
            assert handle.read_now(0, 9000) is None
            assert handle.read(0, 9000) == OLD[:9000]
    finally:
        web("DELETE", "DELETESNAPSHOT", "/versions/kept", snapshotname="before")
        web("PUT", "DISALLOWSNAPSHOT", "/versions/kept")


def test_a_file_that_moved_is_still_this_version(auto: HdfsStore, populate: HdfsPopulate, hdfs: HdfsInstance) -> None:
    populate.write(b"/file", OLD)
    handle = auto.open(b"/file")
    WebHdfs(hdfs.web)("PUT", "RENAME", "/versions/file", destination="/versions/moved")
    populate.write(b"/file", NEW)
    assert handle.read(MIB - 5, 10) == OLD[MIB - 5 : MIB + 5]
    assert auto.open(b"/moved").status.identity == handle.status.identity
    assert auto.open(b"/file").read(0, 10) == NEW[:10]


def test_blocks_of_a_concatenated_file(auto: HdfsStore, populate: HdfsPopulate) -> None:
    pieces = [OLD[:1_200_000], NEW[:5000], OLD[:MIB], NEW[:1]]
    for number, piece in enumerate(pieces):
        populate.write(b"/part%d" % number, piece)
    populate.concat(b"/part0", b"/part1", b"/part2", b"/part3")
    whole = b"".join(pieces)
    handle = auto.open(b"/part0")
    blocks = handle.locate(0, len(whole))
    assert [block.length for block in blocks] == [MIB, 1_200_000 - MIB, 5000, MIB, 1]
    for block in blocks:
        stop = block.offset + block.length
        assert handle.read(block.offset, block.length, host=block.hosts[0]) == whole[block.offset : stop]
    [found] = handle.locate(1_202_000, 1)
    assert (found.offset, found.length) == (1_200_000, 5000)
    assert handle.read(0, len(whole)) == whole


def test_a_file_that_is_being_written(store: HdfsStore, populate: HdfsPopulate, hdfs: HdfsInstance) -> None:
    writer = Client(hdfs.url).create("/versions/open", WriteOptions(block_size=MIB, replication=1, overwrite=True))
    writer.write(OLD[: MIB + MIB // 2])
    writer.hsync()
    handle = store.open(b"/open")
    seen = handle.status.length
    assert handle.read(0, MIB) == OLD[:MIB]
    if store.chooses_host:
        assert handle.read(0, seen) == OLD[:seen]
    else:
        with pytest.raises(HostFailed, match="still being written"):
            handle.read(0, seen)
    assert sum(block.length for block in handle.locate(0, seen)) == seen
    writer.close()
    assert store.open(b"/open").read(0, MIB + MIB // 2) == OLD[: MIB + MIB // 2]


def test_hosts_and_space(auto: HdfsStore, hdfs: HdfsInstance) -> None:
    assert {(host.name, host.reachable_as, host.live) for host in auto.hosts()} == {
        (node["transfer"], node["http"], True) for node in hdfs.datanodes
    }
    space = auto.space()
    assert space is not None
    assert 0 < space.free < space.capacity
    assert space.files > 0
