"""A handle while nodes of a real cluster die, freeze and come back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from stripefs.errors import HostFailed, ServiceDown, StaleVersion
from stripefs.settings import StoreSettings
from stripefs.store.base import Handle
from stripefs.store.hdfs.store import HdfsStore
from tests.contract.writing import patiently
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

pytestmark = pytest.mark.cluster

MIB = 1 << 20
DATA = random.Random(5).randbytes(8 * MIB)
TIMEOUT = 3.0  # a busy machine's nodes may take a second


@pytest.fixture(scope="module")
def ends() -> list[float]:
    """The times at which tests ended, the last of another module as well."""
    return [time.monotonic()]


@pytest.fixture
def populate(fault_hdfs: HdfsInstance, ends: list[float]) -> Iterator[HdfsPopulate]:
    populate = HdfsPopulate(WebHdfs(fault_hdfs.web), "/faults", block_size=MIB, replication=2)
    populate.write(b"/file", DATA)
    yield populate
    ends.append(time.monotonic())
    fault_hdfs.restore()
    populate.delete(b"")


@pytest.fixture(params=["auto", "native"])
def store(
    fault_hdfs: HdfsInstance, populate: HdfsPopulate, ends: list[float], request: pytest.FixtureRequest
) -> Iterator[HdfsStore]:
    # hdfs-native's connections to DataNodes are the process's, for 3 s. A client that finds one does not ask the
    # NameNode for what the next new connection needs, and hangs when that is away. A worker has one client only.
    time.sleep(max(ends[-1] + 3.5 - time.monotonic(), 0.0))
    store = HdfsStore(StoreSettings(url=f"{fault_hdfs.url}/faults", transport=request.param, host_timeout=TIMEOUT))
    yield store
    store.close()


def all_of(handle: Handle) -> bytes:
    """The file by ranges of a block, four at a time."""

    def piece(start: int) -> bytes:
        return patiently(lambda: bytes(handle.read(start, MIB)))

    with ThreadPoolExecutor(4) as pool:
        return b"".join(pool.map(piece, range(0, len(DATA), MIB)))


@pytest.mark.parametrize("transport", ["auto", "webhdfs"])
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_datanode_that_dies_or_freezes_in_mid_stream(
    fault_hdfs: HdfsInstance, populate: HdfsPopulate, how: str, transport: str
) -> None:
    """Ranges before and after it are right; the one range that fails comes from the other replica."""
    long = random.Random(6).randbytes(32 * MIB)
    HdfsPopulate(WebHdfs(fault_hdfs.web), "/faults", block_size=64 * MIB, replication=2).write(b"/long", long)
    store = HdfsStore(StoreSettings(url=f"{fault_hdfs.url}/faults", transport=transport, host_timeout=TIMEOUT))
    handle = store.open(b"/long")
    [block] = handle.locate(0, len(long))
    victim, other = block.hosts
    fault_hdfs.set_rate(20)  # so that most of it is not on its way yet
    host, failed = victim, []

    def read(offset: int) -> bytes:
        return bytes(handle.read_on(offset, MIB, len(long) - offset - MIB, host=host))

    for offset in range(0, len(long), MIB):
        if offset == 2 * MIB:
            assert len(store.reads.streams.all()) == (transport == "webhdfs")
            getattr(fault_hdfs, how)(fault_hdfs.node_at(victim))
        try:
            data = read(offset)
        except HostFailed as error:
            failed.append(error.host)
            host = other
            data = patiently(partial(read, offset))
        assert data == long[offset : offset + MIB]
    assert failed == [victim]
    assert store.reads.streams.all() == []
    store.close()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_open_files_go_on_without_a_namenode(fault_hdfs: HdfsInstance, store: HdfsStore, how: str) -> None:
    begun, untouched = store.open(b"/file"), store.open(b"/file")
    assert begun.read(0, MIB) == DATA[:MIB]
    getattr(fault_hdfs, how)("nn")
    for handle in (begun, untouched):
        assert all_of(handle) == DATA
        assert sum(block.length for block in handle.locate(0, len(DATA))) == len(DATA)
    with pytest.raises(ServiceDown):
        store.open(b"/file")
    with pytest.raises(ServiceDown):
        store.stat(b"/file")
    with pytest.raises(ServiceDown):
        list(store.scandir(b"/"))
    fault_hdfs.restore()
    assert all_of(begun) == DATA
    assert all_of(patiently(lambda: store.open(b"/file"))) == DATA


def test_webhdfs_alone_needs_the_namenode(fault_hdfs: HdfsInstance, populate: HdfsPopulate) -> None:
    store = HdfsStore(StoreSettings(url=f"{fault_hdfs.url}/faults", transport="webhdfs", host_timeout=TIMEOUT))
    handle = store.open(b"/file")
    assert handle.read(0, MIB) == DATA[:MIB]
    fault_hdfs.kill("nn")
    with pytest.raises(ServiceDown):
        handle.read(0, MIB)
    fault_hdfs.restore()
    assert all_of(handle) == DATA
    store.close()


def read_until_refused(handle: Handle) -> None:
    """Read until the store notices that the NameNode is back; the test's time limit ends a store that never does."""
    while True:
        assert patiently(lambda: handle.read(0, MIB)) == DATA[:MIB]


def test_a_file_changed_before_the_namenode_came_back_is_noticed(
    fault_hdfs: HdfsInstance, populate: HdfsPopulate, store: HdfsStore
) -> None:
    handle = store.open(b"/file")
    fault_hdfs.kill("nn")
    assert patiently(lambda: handle.read(0, MIB)) == DATA[:MIB]
    fault_hdfs.restore()
    populate.delete(b"/file")
    with pytest.raises(StaleVersion):
        read_until_refused(handle)
