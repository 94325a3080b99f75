"""The whole way over each kind of store: build, mount, start, trace, optimise, mount again; all by the command."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.images import nasty
from tests.tools.hdfs import HdfsInstance
from tests.tools.imagefs_daemon import Service, eventually
from tests.tools.s3_server import s3_server
from tests.tools.web_server import WebServer

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

LARGE = f"files/{3 * nasty.MIB + 5}"


@contextmanager
def host(folder: Path) -> Iterator[Service]:
    """A machine that knows nothing yet."""
    folder.mkdir()
    with contextlib.closing(Service(folder)) as made:
        yield made


def whole_way(store: str, source: Path, folder: Path) -> None:
    """`store` is a URL for reading and writing."""
    with host(folder / "first") as first:
        first.ok("build", f"dir:{source}", store, "--tag", "t")
        target = first.mountpoint()
        first.ok("mount", f"{store}#t", str(target))
        assert nasty.differences(target / "files", source / "files") == {}
        first.ok("ready", str(target))
        eventually(lambda: "plan_traces" in first.log(), "the trace")
        first.ok("umount", str(target))
        first.ok("optimize", f"{store}#t")
        first.ok("verify", store)
    starts_well(store, source, folder / "second")


def starts_well(store: str, source: Path, folder: Path) -> None:
    with host(folder) as second:
        target = second.mountpoint()
        second.ok("mount", f"{store}#t", str(target))
        eventually(second.plan_is_here, "the plan")
        assert (target / LARGE).read_bytes() == (source / LARGE).read_bytes()
        figures = json.loads(second.ok("ready", str(target), "--json"))["start"]
        assert figures["recall"] > 0.9  # the kernel may read a little further ahead than it did
        assert nasty.differences(target, source) == {}
        second.ok("umount", str(target))
        assert kernel.find_mount(str(target)) is None


def test_s3(nasty_tree: Path, tmp_path: Path) -> None:
    with s3_server() as server:
        whole_way(server.url("images"), nasty_tree, tmp_path)


def test_a_directory_and_then_a_web_server(nasty_tree: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    whole_way(str(store), nasty_tree, tmp_path)
    with WebServer(store) as server:
        starts_well(server.url, nasty_tree, tmp_path / "web")


@pytest.mark.cluster
def test_hdfs(hdfs: HdfsInstance, nasty_tree: Path, tmp_path: Path) -> None:
    whole_way(f"{hdfs.url}/images", nasty_tree, tmp_path)
