"""A real HDFS shown by the installed command: names, attributes and bytes are those of the cluster."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hdfs_native import Client, WriteOptions

from tests.contract.hdfs import HdfsReadConformance, libhdfs_environment
from tests.hdfs.conftest import populated
from tests.support.checked_content import content
from tests.support.refusals import refused
from tests.tools.command import Live, Place
from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import sha256
from tests.tools.webhdfs import WebHdfs

__all__ = ["libhdfs_environment"]

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

BLOCK = 1 << 20
SIZES = (0, 1, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 23 * BLOCK + 4711)
ODD_NAMES = [name.decode() for name in HdfsReadConformance.odd_names]
MANY = 5000


def bytes_of(path: str, size: int) -> bytes:
    return content(path[-15:].encode("ascii", "replace").decode(), 0, size)


@pytest.fixture(scope="module")
def files(hdfs: HdfsInstance) -> Iterator[dict[str, int]]:
    """Fills /mount of the cluster; the files there by path, with their sizes."""
    sizes = {f"sizes/{size}": size for size in SIZES}
    sizes |= {f"odd/{name}": 100 + number for number, name in enumerate(ODD_NAMES)}
    sizes |= {f"odd/dir {name[:200]}/{name}": 200 for name in ODD_NAMES}
    with populated(hdfs, "/mount", block_size=BLOCK) as populate:
        for path, size in sizes.items():
            populate.write(b"/" + path.encode(), bytes_of(path, size))
        populate.mkdir(b"/empty")
        yield sizes


@pytest.fixture
def mounted(hdfs: HdfsInstance, files: dict[str, int], place: Place) -> Live:
    return place.mount(f"{hdfs.url}/mount", "--memory", "64MiB")


def tree_of(root: Path) -> tuple[set[str], dict[str, int]]:
    """Paths below `root`: directories, and files with their sizes."""
    folders: set[str] = set()
    found: dict[str, int] = {}
    for folder, below, names in os.walk(root, onerror=_raise):
        at = Path(folder).relative_to(root)
        folders |= {str(at / name) for name in below}
        found |= {str(at / name): os.stat(os.path.join(folder, name)).st_size for name in names}
    return folders, found


def _raise(error: OSError) -> None:
    raise error


@pytest.mark.parametrize("transport", ["auto", "native", "webhdfs", "libhdfs"])
def test_all_that_is_read_is_what_was_written(
    hdfs: HdfsInstance, files: dict[str, int], place: Place, transport: str, request: pytest.FixtureRequest
) -> None:
    if transport == "libhdfs":
        request.getfixturevalue("libhdfs_environment")
        place.environ |= {name: os.environ[name] for name in ("ARROW_LIBHDFS_DIR", "CLASSPATH", "LIBHDFS_OPTS")}
    live = place.mount(f"{hdfs.url}/mount", "--memory", "64MiB", "--hdfs-transport", transport)
    folders, found = tree_of(live.path)
    assert found == files
    assert folders == {"empty", "odd", "sizes", *(f"odd/dir {name[:200]}" for name in ODD_NAMES)}
    for path, size in files.items():
        assert sha256(live.path / path) == hashlib.sha256(bytes_of(path, size)).hexdigest(), path
    status = live.told_status()
    assert status["store"]["transport"] == {"auto": "data transfer"}.get(transport, transport)
    assert status["requests"]["failed"] == 0
    live.umount()


def test_owner_mode_and_time(hdfs: HdfsInstance, place: Place) -> None:
    web = WebHdfs(hdfs.web)
    other = pwd.getpwnam("daemon")
    with populated(hdfs, "/attributes") as populate:
        for name in ("known", "unknown"):
            populate.write(f"/{name}".encode(), b"x" * 5)
        populate.mkdir(b"/folder")
        populate.chmod(b"/known", 0o640)
        populate.chmod(b"/unknown", 0o444)
        populate.chmod(b"/folder", 0o1770)
        populate.set_times(b"/known", 1_234_567_890_123)
        web("PUT", "SETOWNER", "/attributes/known", owner="daemon", group="daemon")
        web("PUT", "SETOWNER", "/attributes/unknown", owner="nobody-here-knows", group="nor-this")

        live = place.mount(f"{hdfs.url}/attributes")
        known, unknown, folder = (os.stat(live.path / name) for name in ("known", "unknown", "folder"))
        assert (known.st_mode, known.st_uid, known.st_gid) == (stat.S_IFREG | 0o640, other.pw_uid, other.pw_gid)
        assert (unknown.st_mode, unknown.st_uid, unknown.st_gid) == (stat.S_IFREG | 0o444, os.getuid(), os.getgid())
        assert (folder.st_mode, folder.st_uid) == (stat.S_IFDIR | 0o1770, 0)
        assert known.st_mtime_ns == 1_234_567_890_123_000_000
        assert (known.st_size, known.st_blocks, known.st_nlink) == (5, 1, 1)

        masked = place.mount(f"{hdfs.url}/attributes", "--uid", "1234", "--gid", "4321", "--umask", "027")
        known = os.stat(masked.path / "known")
        assert (known.st_mode, known.st_uid, known.st_gid) == (stat.S_IFREG | 0o640, 1234, 4321)
        assert os.stat(masked.path / "unknown").st_mode == stat.S_IFREG | 0o440


def test_attributes_tell_blocks_and_where_they_are(hdfs: HdfsInstance, mounted: Live) -> None:
    big = mounted.path / f"sizes/{SIZES[-1]}"
    with refused(errno.EOPNOTSUPP):
        os.listxattr(big)
    assert os.getxattr(big, "user.stripefs.block_size") == str(BLOCK).encode()
    assert os.getxattr(big, "user.stripefs.replication") == b"1"
    assert os.getxattr(big, "user.stripefs.source").decode() == f"{hdfs.url}/mount/sizes/{SIZES[-1]}"
    told = json.loads(os.getxattr(big, "user.stripefs.locations"))
    answer = WebHdfs(hdfs.web)("GET", "GETFILEBLOCKLOCATIONS", f"/mount/sizes/{SIZES[-1]}")
    assert [(block["offset"], block["length"], block["hosts"]) for block in told] == [
        (block["offset"], block["length"], block["names"]) for block in answer["BlockLocations"]["BlockLocation"]
    ]
    assert json.loads(os.getxattr(mounted.path / "sizes/0", "user.stripefs.locations")) == []
    with refused(errno.ENODATA):
        os.getxattr(big, "user.none")


def test_a_directory_of_thousands(hdfs: HdfsInstance, place: Place) -> None:
    names = {f"{number:04d}-{'x' * (number % 40)}" for number in range(MANY)}
    client = Client(hdfs.url)
    client.mkdirs("/many", 0o755, create_parent=True)
    try:
        with ThreadPoolExecutor(16) as pool:  # the NameNode then writes its journal for many at once
            list(pool.map(lambda name: client.create(f"/many/{name}", WriteOptions()).close(), names))
        live = place.mount(f"{hdfs.url}/many")
        assert os.listdir(live.path) == sorted(names)
        with os.scandir(live.path) as entries:
            assert {entry.name for entry in entries if entry.is_file() and entry.stat().st_size == 0} == names
        with os.scandir(live.path) as entries:
            first = next(entries).name
            live.kill_worker()
            assert [first, *(entry.name for entry in entries)] == sorted(names)
        place.forgive("the worker ended with SIGKILL; the next one takes over")
    finally:
        client.delete("/many", recursive=True)


def test_status_names_the_datanodes(hdfs: HdfsInstance, files: dict[str, int], place: Place) -> None:
    mounted = place.mount(f"{hdfs.url}/mount", "--no-hedge")  # on a busy machine a range may be fetched twice
    size = SIZES[-1]
    assert len((mounted.path / f"sizes/{size}").read_bytes()) == size
    status = mounted.told_status()
    hosts = {host["name"]: host for host in status["reader"]["hosts"]}
    assert hosts.keys() <= {node["transfer"] for node in hdfs.datanodes}
    assert sum(host["bytes"] for host in hosts.values()) == status["reader"]["bytes_fetched"] == size
    assert status["requests"]["read_bytes"] == size
    assert status["source"] == f"{hdfs.url}/mount"
    assert status["store"]["why"]
    assert sum(host["errors"] for host in hosts.values()) == 0
