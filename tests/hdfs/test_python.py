"""Python programs on a real HDFS, without a mount: each layout, what a mount makes of it, and forks."""

from __future__ import annotations

import errno
import os

import pytest
from hdfs_native import Client

import stripefs
from tests.integration.programs.test_engine import FORKED
from tests.support.python_api import LAYOUTS, content, python
from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import MIB, Mounts

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

DATA = content(24 * MIB + 5)


def connect(instance: HdfsInstance, folder: str, **options: object) -> stripefs.FileSystem:
    """A source that is a directory of its own."""
    whole = stripefs.connect(instance.url, hdfs_user="root")
    whole.mkdir(folder, parents=True, exist_ok=True)
    return stripefs.connect(f"{instance.url}/{folder}", hdfs_user="root", **options)


def plain(instance: HdfsInstance, path: str) -> bytes:
    """The bytes that any client of HDFS reads there."""
    status = Client(instance.url).get_file_info(path)
    return bytes(Client(instance.url).read(path).read_range(0, status.length))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(hdfs: HdfsInstance, layout: str, transport: str) -> None:
    folder = f"python-{layout}-{transport}"
    fs = connect(hdfs, folder, layout=layout, unit=MIB, hdfs_transport=transport)
    with fs.open("file", "wb") as file:
        for at in range(0, len(DATA), 1_234_567):
            file.write(DATA[at : at + 1_234_567])
        assert fs.listdir() == []
    assert fs.read_bytes("file") == DATA
    with stripefs.open(f"{hdfs.url}/{folder}/file", hdfs_transport=transport) as file:
        ranges = [(offset, 70_000) for offset in range(0, len(DATA), 999_999)]
        assert file.read_ranges(ranges) == [DATA[offset:][:70_000] for offset, _ in ranges]
        buffer = bytearray(len(DATA))
        assert file.readinto(buffer) == len(DATA)
        assert buffer == DATA
        assert b"".join(iter(lambda: file.read(100_000), b"")) == b""
    if layout != "striped":
        assert plain(hdfs, f"/{folder}/file") == DATA
    with fs.open("file", "ab") as file:
        file.write(DATA)
    assert fs.read_bytes("file") == DATA * 2
    with pytest.raises(OSError, match="being written") as caught, fs.open("file", "wb") as file:
        fs.open("file", "wb")
    assert caught.value.errno == errno.EBUSY
    with pytest.raises(FileExistsError):
        fs.open("file", "xb")
    fs.remove("file")
    assert fs.listdir() == []


def test_mounts_and_programs_see_the_same(hdfs: HdfsInstance, mounts: Mounts) -> None:
    fs = connect(hdfs, "python-mounted", unit=MIB, layout="striped")
    fs.write_bytes("saved", DATA)
    mounted = mounts.mount(f"{hdfs.url}/python-mounted", rw=True, attr_timeout=0.0)
    assert (mounted.path / "saved").read_bytes() == DATA
    os.setxattr(mounted.path, "user.stripefs.layout", b"striped")
    (mounted.path / "below").mkdir()
    (mounted.path / "below" / "by-mount").write_bytes(DATA[::-1])
    assert stripefs.open(f"{hdfs.url}/python-mounted/below/by-mount").read() == DATA[::-1]
    with open(mounted.path / "below" / "by-mount", "wb") as file:
        file.write(b"x")
        with pytest.raises(OSError, match="being written") as caught:
            fs.open("below/by-mount", "wb")
        assert caught.value.errno == errno.EBUSY
    with fs.open("below/by-program", "wb") as writer:
        writer.write(DATA)
        with pytest.raises(OSError, match="busy"):
            (mounted.path / "below" / "by-program").write_bytes(b"x")
    assert (mounted.path / "below" / "by-program").read_bytes() == DATA
    fs.rename("below", "above")
    assert sorted(os.listdir(mounted.path / "above")) == ["by-mount", "by-program"]
    fs.rmtree("above")
    assert sorted(os.listdir(mounted.path)) == ["saved"]


def test_forks(hdfs: HdfsInstance, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIPEFS_HDFS_TRANSPORT", transport)
    connect(hdfs, f"python-forked-{transport}")
    done = python(FORKED, f"{hdfs.url}/python-forked-{transport}")
    assert done.stdout == f"{['child0', 'child1', 'child2', 'child3', 'file', 'other']}\n"
