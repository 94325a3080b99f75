"""Clusters with two NameNodes, block tokens, encrypted data transfer, erasure coding and encryption zones."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stripefs
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.hdfs.datanode_write import DataNodeSink
from stripefs.store.hdfs.transfer_write import TransferSink
from stripefs.store.url import open_store
from tests.support.python_api import LAYOUTS, content
from tests.tools.hdfs import COMMAND, HdfsInstance, hdfs_instance
from tests.tools.mounts import MIB
from tests.tools.webhdfs import WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.root]

DATA = content(6 * MIB + 5)


def connect(instance: HdfsInstance, path: str, **options: object) -> stripefs.FileSystem:
    return stripefs.connect(f"{instance.url}{path}", hadoop_conf=str(instance.conf), hdfs_user="root", **options)


def use_all_layouts(instance: HdfsInstance, path: str) -> None:
    """Write and read files of every layout in the directory, and a small one of each."""
    for layout in LAYOUTS:
        fs = connect(instance, path, layout=layout, unit=MIB)
        for name, data in ((f"{layout}.large", DATA), (f"{layout}.small", DATA[:20_000])):
            with fs.open(name, "wb") as file:
                file.write(data)
            assert fs.read_bytes(name) == data


def opened(instance: HdfsInstance, path: str) -> Store:
    return open_store(StoreSettings(f"{instance.url}{path}", hadoop_conf=str(instance.conf), hdfs_user="root"))


def transport_of(instance: HdfsInstance, path: str = "/") -> dict[str, str]:
    store = opened(instance, path)
    try:
        return dict(store.describe())
    finally:
        store.close()


def java(*arguments: str, conf: Path | None = None) -> None:
    jars = subprocess.run([COMMAND, "jars"], capture_output=True, text=True, check=True).stdout.strip()
    path = f"{jars}/*" if conf is None else f"{jars}/*:{conf}"
    done = subprocess.run(["java", "-cp", path, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_standby_takes_over_under_readers_and_writers() -> None:
    with hdfs_instance(
        "pair", "--datanodes", "3", "--replication", "2", "--rate", "0", "--standby", memory=True
    ) as instance:
        fs = connect(instance, "/", layout="striped", unit=MIB)
        with fs.open("before", "wb") as file:
            file.write(DATA)
        with fs.open("before") as held:
            assert held.pread(offset=0, length=MIB) == DATA[:MIB]
            instance.make_active("nn2")
            assert fs.read_bytes("before") == DATA
            assert held.pread(offset=3 * MIB, length=MIB) == DATA[3 * MIB : 4 * MIB]

            answers: list[object] = []

            def note(work: Callable[[], object]) -> None:
                try:
                    answers.append(work())
                except Exception as error:  # noqa: BLE001  the assertion below shows it
                    answers.append(error)

            begun = threading.Barrier(4)

            def write(name: str) -> bool:
                with fs.open(name, "wb") as file:
                    file.write(DATA[: 4 * MIB])
                    begun.wait()
                    file.write(DATA[4 * MIB :])
                return fs.read_bytes(name) == DATA

            def read() -> bool:
                begun.wait()
                return fs.read_bytes("before") == DATA

            works = [lambda: write("first"), lambda: write("second"), read]
            threads = [threading.Thread(target=note, args=[work]) for work in works]
            for thread in threads:
                thread.start()
            begun.wait()
            instance.kill("nn2")
            instance.make_active("nn")
            for thread in threads:
                thread.join()
            assert answers == [True] * len(works)
            assert held.pread(offset=5 * MIB, length=MIB) == DATA[5 * MIB : 6 * MIB]


@pytest.mark.parametrize("encrypted", [False, True])
def test_block_tokens_and_encrypted_data_transfer(encrypted: bool) -> None:
    properties = ["dfs.block.access.token.enable=true"]
    if encrypted:  # in a way that is faster than the default
        properties += ["dfs.encrypt.data.transfer=true", "dfs.encrypt.data.transfer.cipher.suites=AES/CTR/NoPadding"]
    options = ("--datanodes", "3", "--rate", "0", "--replication", "2", *(f"--set={each}" for each in properties))
    with hdfs_instance("sealed", *options, memory=True) as instance:
        use_all_layouts(instance, "/")
        store = opened(instance, "/")
        host = store.hosts()[0].name
        sink = store.create(b"/.placed", host=host, length=len(DATA))
        assert isinstance(sink, DataNodeSink if encrypted else TransferSink)
        assert sink.complete([DATA]).length == len(DATA)
        handle = store.open(b"/.placed")
        assert all(host in block.hosts and len(block.hosts) == 2 for block in handle.locate(0, len(DATA)))
        handle.close()
        facts = store.describe()
        store.close()
    if encrypted:
        assert facts["transport"] == "webhdfs"
        assert facts["off: data transfer"] == "the cluster encrypts data transfer"


def test_erasure_coding_and_encryption_zones(tmp_path: Path) -> None:
    keys = f"jceks://file{tmp_path}/keys"
    java("org.apache.hadoop.crypto.key.KeyShell", "create", "zone", "-provider", keys, "-size", "128")
    options = ("--datanodes", "4", "--rate", "0", f"--set=hadoop.security.key.provider.path={keys}")
    with hdfs_instance("coded", *options, memory=True) as instance:
        web = WebHdfs(instance.web)
        for folder in ("/coded", "/zone"):
            web("PUT", "MKDIRS", folder)
        web("PUT", "ENABLEECPOLICY", "/", ecpolicy="XOR-2-1-1024k")
        web("PUT", "SETECPOLICY", "/coded", ecpolicy="XOR-2-1-1024k")
        java(
            "org.apache.hadoop.hdfs.tools.CryptoAdmin",
            "-createZone",
            "-keyName",
            "zone",
            "-path",
            "/zone",
            conf=instance.conf,
        )

        # The client knows a key provider that hdfs-native has no code for.
        facts = transport_of(instance)
        assert facts["transport"] == "webhdfs"
        assert "KMS URI" in facts["off: native"]
        use_all_layouts(instance, "/zone")

        # The client knows none.
        for site in (instance.conf / "core-site.xml", instance.conf / "hdfs-site.xml"):
            site.write_text("\n".join(line for line in site.read_text().splitlines() if "key.provider" not in line))
        assert "encryption zone" in transport_of(instance, "/zone")["off: native"]
        use_all_layouts(instance, "/zone")
        with (
            pytest.raises(OSError, match="--hdfs-transport webhdfs"),
            connect(instance, "/").open("zone/file", "wb") as file,
        ):
            file.write(DATA)

        use_all_layouts(instance, "/coded")
        instance.kill("dn1")  # of each group one cell may be missing
        for layout in LAYOUTS:
            assert connect(instance, "/coded").read_bytes(f"{layout}.large") == DATA
