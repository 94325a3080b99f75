"""Builds into stores of every kind, killed on the way, and with a disk that is full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefs.housekeeping.verify import verify
from tests.support.images.layers import file, layer, layout
from tests.support.images.stores import files, images_at, images_in, write_tree
from tests.tools.s3_server import Server, s3_server
from tests.unit.imagefs.cli.conftest import Command

SMALL_PACKS = """
import os, signal, sys
from imagefs.build import packs
from imagefs.repository.images import Images
packs.PACK_SIZE = 256 << 10
put, left = Images.put_pack, [int(os.environ.get("DIE_AFTER", "-1"))]
def put_pack(self, pack, data):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return put(self, pack, data)
Images.put_pack = put_pack
from imagefs.cli.main import run
sys.exit(run())
"""
"""The command with packs so small that an image of a few MiB has many, which may be killed before one is stored."""


def imagefs(*arguments: object, die_after: int = -1, tmp: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DIE_AFTER": str(die_after), "IMAGEFS_TMP": str(tmp or "")}
    command = [sys.executable, "-W", "error", "-c", SMALL_PACKS, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def answer(*arguments: object, **how: Any) -> Any:
    done = imagefs(*arguments, "--json", **how)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_build_that_is_killed_publishes_nothing_and_the_next_stores_nothing_twice(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", **{f"f{seed}": seed for seed in range(12)})
    store = tmp_path / "store"
    killed = imagefs("build", f"dir:{source}", store, "-t", "app", die_after=4)
    assert killed.returncode == -signal.SIGKILL
    before = {path: path.stat().st_ino for path in files(store)}
    assert len(before) == 4
    assert all(path.is_relative_to(store / "packs") for path in before)
    made = answer("build", f"dir:{source}", store, "-t", "app")
    assert {path: path.stat().st_ino for path in files(store) if path in before} == before
    assert made["built"]["new_bytes"] == made["built"]["stored_bytes"] - sum(path.stat().st_size for path in before)
    assert verify(images_in(store)).damage == []
    assert answer("build", f"dir:{source}", tmp_path / "other", "-t", "app")["digest"] == made["digest"]


@pytest.fixture
def full(target: str) -> Path:
    """A file system of 1 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", target], check=True)
    return Path(target)


@pytest.mark.root
def test_a_full_disk_under_the_unpacked_layers(tmp_path: Path, full: Path) -> None:
    folder = layout(tmp_path / "layout", [layer(file("a", bytes(4 << 20)))])
    done = imagefs("build", f"oci:{folder}", tmp_path / "store", "-t", "app", tmp=full)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "No space left on device; nothing was published; --tmp names a folder with more space" in done.stderr
    assert list(full.iterdir()) == []
    assert files(tmp_path / "store") == []


@pytest.mark.root
def test_a_full_disk_under_the_store(tmp_path: Path, full: Path) -> None:
    source = write_tree(tmp_path / "source", **{f"f{seed}": seed for seed in range(8)})
    done = imagefs("build", f"dir:{source}", full, "-t", "app")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "No space left on device" in done.stderr
    images = images_in(full)
    assert (images.images(), images.tags()) == ({}, {})
    assert verify(images).damage == []
    images.repository.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as running:
        yield running


def test_a_bucket(server: Server, tmp_path: Path, imagefs: Command) -> None:
    url = server.url("images/team")
    source = write_tree(tmp_path / "source", a=1, b=2)
    made = imagefs.json("build", f"dir:{source}", url, "-t", "app")
    assert made["built"]["new_bytes"] == 600_000
    with images_at(url) as images:
        assert images.resolve("app") == made["digest"]
        assert imagefs.json("build", f"dir:{source}", url, "-t", "app")["built"]["new_bytes"] == 0
        assert verify(images).damage == []
        assert [row["tags"] for row in imagefs.json("ls", url)] == [["app"]]
        assert imagefs.json("inspect", f"{url}#app")["blocks"]["stored"] == 6
        assert imagefs.json("rm", f"{url}#app")["images"] == [made["digest"]]
        removed = imagefs.json("gc", url, "--force")["removed"]
        assert {path.partition("/")[0] for path in removed} == {"packs", "indexes", "metadata", "extents"}
        assert list(images.files(b"/packs")) == []
