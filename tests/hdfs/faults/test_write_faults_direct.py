"""Files written to the real HDFS in parts while DataNodes die, freeze or the NameNode goes."""

from __future__ import annotations

import pytest
import trio

from stripefs.errors import Busy, QuotaExceeded
from stripefs.store.striped import StripedStore
from stripefs.store.striped_handle import StripedHandle
from stripefs.write import Layout
from stripefs.write.file_lock import acquire, lock_path
from tests.hdfs.test_write import PARTED, SIZE, at, load
from tests.support.uploads import KIB, MIB, content, save, writing
from tests.support.waiting import eventually
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.root]


@pytest.mark.parametrize("layout", PARTED)
async def test_a_datanode_is_killed_on_the_way(fault_hdfs: HdfsInstance, layout: Layout) -> None:
    """Its parts go elsewhere from memory; what it held already has another replica."""
    data = content(3 * SIZE)
    with at(fault_hdfs, f"killed-{layout.value}") as store:
        async with writing(store, memory=16 * MIB, io_timeout=60.0, small=MIB, unit=256 * KIB) as uploads:
            upload = await uploads.begin(b"/file", replacing=None, layout=layout)
            await upload.write(0, data[:SIZE])
            await trio.to_thread.run_sync(fault_hdfs.kill, "dn2")
            for begin in range(SIZE, len(data), MIB):
                await upload.write(begin, data[begin : begin + MIB])
            await upload.publish(final=True)
            assert uploads.status()["retries"]
        assert await load(store, b"/file") == data


async def test_a_frozen_datanode(fault_hdfs: HdfsInstance) -> None:
    """It may be the second replica of a part too, which then goes elsewhere until nobody waits for the frozen one."""
    data = content(24 * MIB)
    with at(fault_hdfs, "frozen") as store:
        async with writing(store, io_timeout=90.0, small=MIB, unit=MIB, deadline=200.0) as uploads:
            upload = await uploads.begin(b"/file", replacing=None, layout=Layout.STRIPED)
            await trio.to_thread.run_sync(fault_hdfs.pause, "dn1")
            await upload.write(0, data)
            await upload.publish(final=True)
        await trio.to_thread.run_sync(fault_hdfs.restore)  # `load` asks one replica, which may be there
        assert await load(store, b"/file") == data


async def test_the_namenode_comes_again(fault_hdfs: HdfsInstance) -> None:
    data = content(SIZE)
    with at(fault_hdfs, "namenode") as store:
        async with writing(store, memory=16 * MIB, io_timeout=90.0, small=MIB, unit=256 * KIB) as uploads:
            upload = await uploads.begin(b"/file", replacing=None)
            await upload.write(0, data[: 4 * MIB])
            await trio.to_thread.run_sync(fault_hdfs.kill, "nn")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, fault_hdfs.restart, "nn")
                await upload.write(4 * MIB, data[4 * MIB :])
                await upload.publish(final=True)
        assert await load(store, b"/file") == data


async def test_an_open_striped_file_goes_on_without_the_namenode(fault_hdfs: HdfsInstance) -> None:
    """Its parts are pinned by the reading of their tables, which look-ahead fetches."""
    data = content(SIZE)
    with at(fault_hdfs, "away") as store:
        async with writing(store, memory=16 * MIB, io_timeout=60.0, small=MIB, unit=256 * KIB) as uploads:
            await save(uploads, b"/f", data, layout=Layout.STRIPED)
        handle = StripedStore(store).open(b"/f")
        assert isinstance(handle, StripedHandle)
        handle.locate(0, SIZE)
        parts = range(len(handle.manifest.parts))
        eventually(lambda: all(handle._parts.has_table(part) for part in parts), "the tables of all parts")
        fault_hdfs.kill("nn")
        assert bytes(await trio.to_thread.run_sync(handle.read, 0, SIZE)) == data
        handle.close()
        fault_hdfs.restore()


def test_a_lock_is_renewed_while_no_datanode_answers_and_no_name_is_left(fault_hdfs: HdfsInstance) -> None:
    """Only the NameNode has part in it, so no DataNode that is frozen costs a living writer its file; and where a quota
    of names leaves none for the file that tells the NameNode's time, it is not needed."""
    with at(fault_hdfs, "renewed") as store:
        lease = acquire(store, b"/file", ["0" * 16])
        web = WebHdfs(fault_hdfs.web)
        fault_hdfs.pause("dn1", "dn2", "dn3", "dn4")
        for quota in (100, 2):  # the directory counts too
            web("PUT", "SETQUOTA", "/renewed", namespacequota=quota)
            for _ in range(2):
                before = store.stat(lock_path(b"/file")).mtime_ns
                lease.renew()
                lease.assert_held()
                assert store.stat(lock_path(b"/file")).mtime_ns > before
        with pytest.raises(QuotaExceeded):
            store.put(b"/another", ())
        web("PUT", "SETQUOTA", "/renewed", namespacequota=100)
        fault_hdfs.restore()
        with pytest.raises(Busy):
            acquire(store, b"/file")
        lease.release()
        acquire(store, b"/file").release()
