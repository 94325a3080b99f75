"""Python programs on a real HDFS, without a mount: what a mount makes of their files, and forks."""

from __future__ import annotations

import errno
import os

import pytest

import stripefs
from tests.integration.programs.test_engine import FORKED
from tests.support.python_api import content, python
from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import MIB, Mounts

pytestmark = [pytest.mark.cluster, pytest.mark.mount, pytest.mark.root]

DATA = content(24 * MIB + 5)


def connect(instance: HdfsInstance, folder: str, **options: object) -> stripefs.FileSystem:
    """A source that is a directory of its own."""
    whole = stripefs.connect(instance.url, hdfs_user="root")
    whole.mkdir(folder, parents=True, exist_ok=True)
    return stripefs.connect(f"{instance.url}/{folder}", hdfs_user="root", **options)


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


def test_forks(hdfs: HdfsInstance) -> None:
    connect(hdfs, "python-forked")
    done = python(FORKED, f"{hdfs.url}/python-forked")
    assert done.stdout == f"{['child0', 'child1', 'child2', 'child3', 'file', 'other']}\n"
