"""Writing to a real cluster whose nodes die, freeze and start again, and whose directories have quotas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stripefs.errors import HostFailed, NotFound, QuotaExceeded, ServiceDown
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.store import HdfsStore
from tests.contract.putting import read
from tests.contract.writing import patiently
from tests.support.stores import content, listing
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

pytestmark = pytest.mark.cluster

MIB = 1 << 20
TIMEOUT = 1.5  # three times that is waited for a writing DataNode


@pytest.fixture
def store(fault_hdfs: HdfsInstance) -> Iterator[HdfsStore]:
    populate = HdfsPopulate(WebHdfs(fault_hdfs.web), "/write-faults")
    store = HdfsStore(StoreSettings(url=f"{fault_hdfs.url}/write-faults", host_timeout=TIMEOUT))
    yield store
    store.close()
    fault_hdfs.restore()
    populate.delete(b"")


def write_on(store: HdfsStore, path: bytes, host: str, size: int) -> None:
    """One try. Raises what a sink raises, after giving the file up."""
    sink = store.create(path, host=host, block_size=MIB, replication=1)
    try:
        for start in range(0, size, MIB):
            sink.write(content(size)[start : start + MIB])
        sink.close()
    except BaseException:
        sink.abort()
        raise


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_datanode_dies_or_freezes_in_the_middle(fault_hdfs: HdfsInstance, store: HdfsStore, how: str) -> None:
    victim, other = [host.name for host in store.hosts()][:2]
    sink = store.create(b"/part", host=victim, block_size=MIB, replication=1)
    sink.write(content(5 * MIB))
    getattr(fault_hdfs, how)(fault_hdfs.node_at(victim))
    with pytest.raises(HostFailed) as caught:
        write_until_it_fails(sink)
    assert caught.value.host == victim
    assert caught.value.stalled == (how == "pause")
    sink.abort()
    with pytest.raises(NotFound):
        store.stat(b"/part")
    patiently(lambda: write_on(store, b"/part", other, 5 * MIB))
    assert read(store, b"/part") == content(5 * MIB)
    if how == "kill":
        with pytest.raises(HostFailed):
            write_on(store, b"/another", victim, MIB)
    fault_hdfs.restore()
    assert [status.name for status in listing(store, b"/")] == [b"part"]


def write_until_it_fails(sink: object) -> None:
    for _ in range(1000):
        sink.write(bytes(MIB))  # type: ignore[attr-defined]


def test_the_namenode_starts_again_in_the_middle(fault_hdfs: HdfsInstance, store: HdfsStore) -> None:
    host = store.hosts()[0].name
    patiently(lambda: write_on(store, b"/before", host, MIB))
    sink = store.create(b"/during", host=host, block_size=64 * MIB, replication=1)
    sink.write(content(3 * MIB))
    fault_hdfs.kill("nn")
    with pytest.raises(ServiceDown):
        store.mkdir(b"/folder")
    with pytest.raises(ServiceDown):
        store.rename(b"/before", b"/after")
    with pytest.raises(ServiceDown):
        store.create(b"/other", host=host)
    fault_hdfs.restart("nn")
    # It may still be in safe mode, which is said by the same error.
    patiently(lambda: store.mkdir(b"/folder"))
    patiently(lambda: store.rename(b"/before", b"/after"))
    try:
        sink.write(content(3 * MIB))
        status = sink.close()
    except (HostFailed, ServiceDown):  # the DataNode's own patience may have ended first
        sink.abort()
        patiently(lambda: write_on(store, b"/during", host, 6 * MIB))
    else:
        assert status.length == 6 * MIB
        assert read(store, b"/during") == content(3 * MIB) * 2
    assert read(store, b"/after") == content(MIB)
    assert [status.name for status in listing(store, b"/")] == [b"after", b"during", b"folder"]


@pytest.mark.parametrize("placed", [True, False])
def test_a_quota_that_is_used_up(fault_hdfs: HdfsInstance, store: HdfsStore, placed: bool) -> None:
    web = WebHdfs(fault_hdfs.web)
    web("PUT", "MKDIRS", "/write-faults/small")
    web("PUT", "SETQUOTA", "/write-faults/small", namespacequota=3, storagespacequota=4 * MIB)
    host = store.hosts()[0].name if placed else ""
    with pytest.raises(QuotaExceeded):
        write_on(store, b"/small/file", host, 20 * MIB)
    assert listing(store, b"/small") == []
    patiently(lambda: write_on(store, b"/small/file", host, MIB))
    store.mkdir(b"/small/folder")
    with pytest.raises(QuotaExceeded):
        store.mkdir(b"/small/another")
    with pytest.raises(QuotaExceeded):
        write_on(store, b"/small/third", host, 1)
    assert [status.name for status in listing(store, b"/small")] == [b"file", b"folder"]
