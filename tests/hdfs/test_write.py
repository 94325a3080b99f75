"""Files written to the real HDFS in parts that are placed, and read back as one, while DataNodes live or die."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from stripefs.errors import Busy
from stripefs.format.reserved_names import POOL_NAME, is_hidden
from stripefs.settings import StoreSettings
from stripefs.store.base import Attributes, Store
from stripefs.store.striped import StripedStore
from stripefs.store.url import open_store
from stripefs.write import Layout
from tests.support.uploads import KIB, LAYOUTS, MIB, content, save, writing
from tests.tools.hdfs import HdfsInstance

pytestmark = [pytest.mark.cluster, pytest.mark.root]

PARTED = LAYOUTS[:2]
SIZE = 12 * MIB + 345


@contextmanager
def at(instance: HdfsInstance, folder: str) -> Iterator[Store]:
    """A store whose root is a directory of its own."""
    whole = open_store(StoreSettings(url=f"{instance.url}/", hdfs_user="root"))
    whole.mkdir(b"/" + folder.encode())
    whole.close()
    with contextlib.closing(
        open_store(StoreSettings(url=f"{instance.url}/{folder}", hdfs_user="root", host_timeout=2.0))
    ) as store:
        yield store


def hosts_of(store: Store, path: bytes) -> Counter[str]:
    """Bytes of a file on each host, first replicas."""
    with contextlib.closing(StripedStore(store).open(path)) as handle:
        found: Counter[str] = Counter()
        for block in handle.locate(0, handle.status.length):
            found[block.hosts[0]] += block.length
        return found


def hidden(store: Store) -> list[bytes]:
    return [s.name for batch in store.scandir(b"/") for s in batch if is_hidden(s.name) and s.name != POOL_NAME]


async def load(store: Store, path: bytes) -> bytes:
    return await trio.to_thread.run_sync(lambda: bytes(StripedStore(store).get(path)))


async def test_layouts(hdfs: HdfsInstance) -> None:
    """Written, synced, continued after a publication, appended to, replaced; read back whole and evenly spread."""
    data = content(SIZE)
    with at(hdfs, "layouts") as store:
        async with writing(store, memory=16 * MIB, io_timeout=60.0, small=MIB, unit=256 * KIB) as uploads:
            for layout in LAYOUTS:
                path = b"/" + layout.value.encode()
                upload = await uploads.begin(path, replacing=None, layout=layout, attributes=Attributes(mode=0o640))
                with pytest.raises(Busy):
                    await uploads.begin(path, replacing=None)
                await upload.write(0, data[: 8 * MIB])
                await upload.sync()
                await upload.publish(final=False)
                assert await load(store, path) == data[: 8 * MIB]
                await upload.write(8 * MIB, data[8 * MIB :])
                assert await upload.read(7 * MIB, 2 * MIB) == data[7 * MIB : 9 * MIB]
                status = await upload.publish(final=True)
                assert (status.length, status.mode) == (SIZE, 0o640)
                assert await load(store, path) == data
                if layout is not Layout.PLAIN:
                    assert len(hosts_of(store, path)) == 4
                    assert max(hosts_of(store, path).values()) < SIZE / 2
                upload = await uploads.begin(path, replacing=status.identity, append=True)
                await upload.write(SIZE, b"behind")
                status = await upload.publish(final=True)
                assert await load(store, path) == data + b"behind"
                await save(uploads, path, data[:5], layout=layout, replacing=status.identity)
                assert await load(store, path) == data[:5]
        assert hidden(store) == []
