"""The libhdfs transport against a real cluster. Skipped where libhdfs.so cannot be built, with the reason."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stripefs.errors import ConfigError, HostFailed, NotFound, ServiceDown, StaleVersion
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.hadoop_conf import NameNode, Target, resolve
from stripefs.store.hdfs.libhdfs import LibhdfsClient, find_classpath, find_java_home, find_library, on_permanent_thread
from tests.contract.hdfs import HdfsReadConformance, briefly, libhdfs_environment
from tests.support.stores import content
from tests.tools.hdfs import HdfsInstance
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

__all__ = ["libhdfs_environment"]


@pytest.mark.cluster
@pytest.mark.usefixtures("libhdfs_environment")
@briefly
class TestLibhdfs(HdfsReadConformance):
    transport = "libhdfs"


@pytest.fixture
def client(hdfs: HdfsInstance, libhdfs_environment: None) -> LibhdfsClient:
    target = resolve(StoreSettings(url=hdfs.url, hdfs_user="root"), {})
    return LibhdfsClient(target, timeout=5, by_hostname=False)


@pytest.fixture
def populate(hdfs: HdfsInstance) -> Iterator[HdfsPopulate]:
    populate = HdfsPopulate(WebHdfs(hdfs.web), "/libhdfs", block_size=65536)
    yield populate
    populate.delete(b"")


@pytest.mark.cluster
def test_later_blocks_of_a_replaced_file_are_not_the_new_files(client: LibhdfsClient, populate: HdfsPopulate) -> None:
    size = 20 * 65536  # Hadoop by itself locates ten blocks at first
    old, new = content(size, 1), content(size, 2)
    populate.write(b"/file", old)
    file = client.open("/libhdfs/file", size)
    assert bytes(file.read(0, 1000, None)) == old[:1000]
    populate.write(b"/file", new)
    for start in range(0, size, 65536):
        try:
            assert bytes(file.read(start, 1000, None)) == old[start : start + 1000]
        except HostFailed:
            continue


@pytest.mark.cluster
def test_what_cannot_be_opened(client: LibhdfsClient, populate: HdfsPopulate) -> None:
    populate.write(b"/file", b"four")
    with pytest.raises(NotFound):
        client.open("/libhdfs/nothing", 4)
    with pytest.raises(StaleVersion):
        client.open("/libhdfs/file", 5)
    assert bytes(client.open("/libhdfs/file", 4).read(1, 2, None)) == b"ou"


@pytest.mark.cluster
def test_the_jvm_leaves_signals_and_the_exit_code_alone(hdfs: HdfsInstance, libhdfs_environment: None) -> None:
    program = (
        "import os, signal, sys; from stripefs.store.hdfs.store import HdfsStore;"
        "from stripefs.settings import StoreSettings;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));"
        "HdfsStore(StoreSettings(url=sys.argv[1], transport='libhdfs'));"
        "os.kill(os.getpid(), signal.SIGTERM); signal.pause()"
    )
    done = subprocess.run([sys.executable, "-c", program, hdfs.url], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr


def test_a_namenode_that_is_away(tmp_path: Path) -> None:
    away = Target("127.0.0.1:9", (NameNode("127.0.0.1:9", "127.0.0.1:9"),), b"", "root", "")
    with pytest.raises(ServiceDown):
        LibhdfsClient(away, timeout=1, by_hostname=False)


def test_where_the_library_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ARROW_LIBHDFS_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(ConfigError, match="build-libhdfs"):
        find_library()
    for name, folder in (("HOME", ".cache/bootseer/libhdfs-0.3.1"), ("HADOOP_HOME", "lib/native")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "libhdfs.so").touch()
        monkeypatch.setenv(name, str(tmp_path))
        assert find_library() == tmp_path / folder
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", str(tmp_path / "empty"))
    assert find_library() == tmp_path / "lib" / "native"


def test_the_jars_are_named_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hadoop-common-3.jar", "b.jar", "a.txt"):
        (tmp_path / name).touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.setenv("CLASSPATH", f"/etc/hadoop:{tmp_path}/*")
    assert find_classpath() == f"/etc/hadoop:{tmp_path}/b.jar:{tmp_path}/hadoop-common-3.jar"
    monkeypatch.setenv("CLASSPATH", "/etc/hadoop")
    with pytest.raises(ConfigError, match="hadoop classpath"):
        find_classpath()


def test_the_jars_that_a_hadoop_distribution_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "hadoop"
    command.write_text("#!/bin/sh\necho /jars/hadoop-common-3.jar:/jars/$2.jar\n")
    command.chmod(0o755)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("CLASSPATH", "/mine.jar")
    assert find_classpath() == "/mine.jar:/jars/hadoop-common-3.jar:/jars/--glob.jar"


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="JAVA_HOME"):
        find_java_home()
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "libjvm.so").touch()
    assert find_java_home() == str(tmp_path)


def test_work_is_done_on_threads_that_stay() -> None:
    def worker(barrier: threading.Barrier) -> threading.Thread:
        barrier.wait()
        return threading.current_thread()

    with ThreadPoolExecutor(4) as pool:
        together = threading.Barrier(4)
        first = set(pool.map(lambda _: on_permanent_thread(lambda: worker(together)), range(4)))
        alone = threading.Barrier(1)
        again = {on_permanent_thread(lambda: worker(alone)) for _ in range(20)}
    assert len(first) >= 4
    assert all(thread.is_alive() and thread.daemon for thread in first)
    assert all(thread.is_alive() for thread in again)
    with pytest.raises(ZeroDivisionError):
        on_permanent_thread(lambda: 1 // 0)
