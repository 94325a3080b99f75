"""Blocks whose replicas are all damaged on the DataNodes' disks, read by each transport, by the API and by a mount."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stripefs
from stripefs.errors import HostFailed
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.store import HdfsStore
from tests.hdfs.conftest import populated
from tests.support.waiting import eventually
from tests.tools.command import Place
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20
DATA = bytes(range(256)) * (3 * MIB // 256)
NAME = "/damaged"
FOLDER = "/corrupt"


@pytest.fixture
def replicas(fault_hdfs: HdfsInstance) -> Iterator[list[Path]]:
    """The block files of the second block of a file of three, on two DataNodes."""
    with populated(fault_hdfs, FOLDER, block_size=MIB, replication=2) as populate:
        populate.write(NAME.encode(), DATA)
        answer = WebHdfs(fault_hdfs.web)("GET", "GET_BLOCK_LOCATIONS", FOLDER + NAME, offset=MIB, length=1)
        [block] = answer["LocatedBlocks"]["locatedBlocks"]
        found = list(fault_hdfs.state.rglob(f"blk_{block['block']['blockId']}"))
        assert len(found) == 2
        yield found


def damage(replica: Path) -> None:
    with replica.open("r+b") as file:
        file.seek(MIB // 2)
        file.write(b"\0" * 64)


@pytest.mark.parametrize("transport", ["auto", "native"])
def test_a_read_says_which_block_is_corrupt(
    fault_hdfs: HdfsInstance, replicas: list[Path], place: Place, transport: str
) -> None:
    for replica in replicas:
        damage(replica)
    damaged = replicas[0].name
    url = f"{fault_hdfs.url}{FOLDER}"
    said = f"block {damaged} fails its checksum at byte {MIB + MIB // 2} of the file on all its DataNodes: "
    with (
        stripefs.open(url + NAME, "rb", hdfs_transport=transport, io_timeout=600.0) as file,
        pytest.raises(OSError, match=said) as failure,
    ):
        file.pread(offset=MIB, length=MIB)
    assert failure.value.errno == errno.EIO
    live = place.mount(url, "--hdfs-transport", transport, "--io-timeout", "600s", "--host-timeout", "2s")
    place.forgive(damaged)
    with pytest.raises(OSError, match="Input/output error"):
        (live.path / NAME[1:]).read_bytes()
    assert said in live.log_text()
    [message] = live.status()["reader"]["corrupt"]
    assert message.partition(": ")[2].startswith(said)
    with (live.path / NAME[1:]).open("rb", buffering=0) as plain:
        assert plain.read(4096) == DATA[:4096]


@pytest.mark.parametrize("transport", ["auto", "native"])
def test_a_corrupt_replica_does_not_end_the_wait_for_another(
    fault_hdfs: HdfsInstance, replicas: list[Path], transport: str
) -> None:
    damaged, intact = replicas
    damage(damaged)
    [node] = [part for part in intact.relative_to(fault_hdfs.state).parts if part.startswith("dn")]
    url = f"{fault_hdfs.url}{FOLDER}{NAME}"
    with (
        stripefs.open(url, "rb", hdfs_transport=transport, io_timeout=120.0) as file,
        ThreadPoolExecutor(1) as pool,
    ):
        fault_hdfs.kill(node)
        wanted = pool.submit(file.pread, offset=MIB, length=MIB)
        fault_hdfs.restart(node)
        assert wanted.result() == DATA[MIB : 2 * MIB]


def test_a_corrupt_replica_is_replaced(fault_hdfs: HdfsInstance, replicas: list[Path]) -> None:
    """Its DataNode is led to the damage, and reports it. Until then reads from there fail."""
    damage(replicas[0])
    store = HdfsStore(StoreSettings(url=f"{fault_hdfs.url}{FOLDER}"))
    handle = store.open(NAME.encode())
    [block] = handle.locate(MIB, 1)
    [host] = [name for name in block.hosts if fault_hdfs.node_at(name) in replicas[0].parts]
    with pytest.raises(HostFailed, match="fails its checksum"):
        handle.read(MIB, MIB, host=host)

    def replaced() -> bool:
        [now] = store.reads.blocks(f"{FOLDER}{NAME}", MIB, 1)
        return host not in now.hosts and len(now.hosts) == len(block.hosts)

    eventually(replaced, "another replica in place of the damaged one")
    handle.close()
    store.close()
