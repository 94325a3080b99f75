"""A source that cannot be mounted or read ends in one line of advice, an exit code, and nothing left behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from stripefs.fuse.control import find_mounts
from stripefs.settings import StoreSettings
from stripefs.store.hdfs.store import HdfsStore
from tests.support.checked_content import content
from tests.support.refusals import refused
from tests.tools.command import Live, Place
from tests.tools.hdfs import HdfsInstance, hdfs_instance
from tests.tools.mounts import workers_of
from tests.tools.webhdfs import HdfsPopulate, WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

SMALL = ("--datanodes", "1", "--rate", "0", "--block-size", "1MiB")
SIZE = 3 * (1 << 20) + 5
STORE = 3  # the exit code


@pytest.fixture(scope="module")
def source(hdfs: HdfsInstance) -> Iterator[str]:
    populate = HdfsPopulate(WebHdfs(hdfs.web), "/refused", block_size=1 << 20)
    populate.write(b"/file", content("file", 0, SIZE))
    yield f"{hdfs.url}/refused"
    populate.delete(b"")


@pytest.fixture(scope="module")
def guarded(nothing_left: None) -> Iterator[HdfsInstance]:
    """A NameNode that checks permissions. /open may be read by all, /open/closed and /open/secret by root alone."""
    with hdfs_instance("guarded", *SMALL, "--permissions", memory=True) as instance:
        populate = HdfsPopulate(WebHdfs(instance.web), "/open", block_size=1 << 20)
        populate.write(b"/readable", content("readable", 0, SIZE))
        populate.write(b"/secret", content("secret", 0, SIZE))
        populate.write(b"/closed/file", content("file", 0, SIZE))
        populate.chmod(b"/secret", 0o600)
        populate.chmod(b"/closed", 0o700)
        populate.mkdir(b"/saved")
        populate.chmod(b"/saved", 0o777)
        yield instance


@pytest.fixture(scope="module")
def without_web(nothing_left: None) -> Iterator[HdfsInstance]:
    """No web port can be reached."""
    with hdfs_instance("noweb", *SMALL, "--no-webhdfs", memory=True) as instance:
        # It writes again what a busy NameNode has not heard of in time; the client's own writer gives that up.
        HdfsStore(StoreSettings(url=instance.url, transport="native")).put(b"/file", [content("file", 0, SIZE)])
        yield instance


def traces(mountpoint: Path) -> list[object]:
    """All that shows a mount there: of the kernel, its workers, and what `stripefs status` would list."""
    path = str(mountpoint)
    return [kernel.find_mount(path), workers_of(path), [mount for mount in find_mounts() if mount.mountpoint == path]]


def complaint(place: Place, source: str, *options: object) -> str:
    """The error line of a mount that must fail, after looking at its exit code and for what it may have left."""
    mountpoint = place.folder / "mnt"
    mountpoint.mkdir(exist_ok=True)
    before = traces(mountpoint)
    done = place.run("mount", source, mountpoint, "--log-file", place.folder / "log", *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (STORE, "", 1), done
    assert done.stderr.startswith("stripefs: ")
    assert traces(mountpoint) == before
    return done.stderr


@pytest.mark.parametrize(
    ("below", "says"),
    [
        ("/none/at/all", "/refused/none/at/all does not exist"),
        ("/file", "is a file; give the directory that holds it"),
    ],
)
def test_a_source_that_is_no_directory(source: str, place: Place, below: str, says: str) -> None:
    line = complaint(place, source + below)
    assert says in line


@pytest.mark.parametrize("transport", ["auto", "native", "webhdfs"])
def test_a_port_where_nothing_listens(hdfs: HdfsInstance, place: Place, transport: str) -> None:
    host = hdfs.rpc.partition(":")[0]
    port = ("--webhdfs-port", "9") if transport == "webhdfs" else ()
    line = complaint(place, f"hdfs://{host}:9/", "--hdfs-transport", transport, *port)
    assert "nothing listens there" in line
    assert "port" in line.partition(";")[2]


@pytest.mark.parametrize("transport", ["auto", "native"])
def test_the_web_port_given_as_rpc_port(hdfs: HdfsInstance, place: Place, transport: str) -> None:
    line = complaint(place, f"hdfs://{hdfs.web}/", "--hdfs-transport", transport)
    assert "is a web port; give the RPC port" in line


def test_the_rpc_port_given_as_web_port(hdfs: HdfsInstance, source: str, place: Place) -> None:
    port = ("--webhdfs-port", hdfs.rpc.rpartition(":")[2])
    line = complaint(place, source, "--hdfs-transport", "webhdfs", *port)
    assert "--webhdfs-port N" in line
    live = place.mount(source, *port)
    assert live.told_status()["store"]["transport"] == "native"
    assert (live.path / "file").read_bytes() == content("file", 0, SIZE)


@pytest.mark.parametrize("transport", ["auto", "native", "webhdfs"])
def test_no_permission(guarded: HdfsInstance, place: Place, transport: str) -> None:
    options = ("--hdfs-user", "nobody", "--hdfs-transport", transport)
    line = complaint(place, f"{guarded.url}/open/closed/below", *options)
    assert "ermission denied" in line
    assert "--hdfs-user" in line
    live = place.mount(f"{guarded.url}/open", *options)
    assert (live.path / "readable").read_bytes() == content("readable", 0, SIZE)
    for attempt in (
        lambda: (live.path / "secret").read_bytes(),
        lambda: os.listdir(live.path / "closed"),
        lambda: (live.path / "closed/file").stat(),
    ):
        with refused(errno.EACCES):
            attempt()
    mine = place.mount(f"{guarded.url}/open", "--hdfs-user", "root", "--hdfs-transport", transport)
    assert (mine.path / "secret").read_bytes() == content("secret", 0, SIZE)


@pytest.mark.parametrize("layout", ["concat", "striped", "plain"])
def test_a_user_who_may_write_here_and_not_there(guarded: HdfsInstance, place: Place, layout: str) -> None:
    """Opening says so, and chown of a file that is being written; what may be written is whole and theirs."""
    place.forgive("big files are written as")
    options = ("--rw", "--layout", layout, "--hdfs-user", "nobody", "--attr-timeout", "0s")
    live = place.mount(f"{guarded.url}/open/saved", *options)
    mine, data = live.path / layout, content("saved", 0, 10 * SIZE)
    with open(mine, "wb", buffering=0) as file:
        file.write(data[:SIZE])
        for owner, group in ((1, -1), (-1, 1)):
            with refused(errno.EPERM):
                os.fchown(file.fileno(), owner, group)
        os.fchmod(file.fileno(), 0o640)
        file.writelines(data[at : at + SIZE] for at in range(SIZE, len(data), SIZE))
    assert mine.read_bytes() == data
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640
    assert mine.owner() == "nobody"
    live.umount()

    other = place.mount(f"{guarded.url}/open", *options)
    for attempt in (
        lambda: (other.path / "readable").open("wb"),
        lambda: (other.path / "new").open("wb"),
        lambda: (other.path / "readable").rename(other.path / "moved"),
        lambda: (other.path / "readable").unlink(),
        lambda: (other.path / "below").mkdir(),
    ):
        with refused(errno.EACCES):
            attempt()
    with refused(errno.EPERM):
        (other.path / "readable").chmod(0o777)
    assert (other.path / "readable").read_bytes() == content("readable", 0, SIZE)
    other.umount()


def test_webhdfs_off(without_web: HdfsInstance, place: Place) -> None:
    line = complaint(place, without_web.url, "--hdfs-transport", "webhdfs", "--host-timeout", "2s")
    assert "--webhdfs-port N" in line
    live: Live = place.mount(without_web.url, "--host-timeout", "2s")
    assert (live.path / "file").read_bytes() == content("file", 0, SIZE)
    store = live.told_status()["store"]
    assert (store["transport"], store["why"]) == ("native", "WebHDFS cannot be used")
    assert without_web.web in store["off: webhdfs"]
    assert any(name.startswith("off: block locations") for name in store)
    assert "WebHDFS cannot be used" in place.run("status", live.path).stdout
    live.umount()
