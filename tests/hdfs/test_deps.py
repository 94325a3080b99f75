"""Dependency snapshots in a real HDFS: one host publishes, another mounts."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.deps.installed import imported
from tests.support.deps.starting import by_uv, start
from tests.support.deps.wheels import wheel
from tests.tools.hdfs import HdfsInstance
from tests.tools.imagefs_daemon import PATIENCE, Service, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.mount, pytest.mark.slow]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Service]]:
    """Two, each with a daemon and a cache of its own."""
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder in folders:
            folder.mkdir()
        yield [stack.enter_context(contextlib.closing(Service(folder, background_rate="0"))) for folder in folders]


def test_one_publishes_and_another_mounts(hdfs: HdfsInstance, hosts: list[Service], tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": b"0123456789abcdef" * 20_000}
    wheel(tmp_path / "wheels", "heavy", files)
    target, url = tmp_path / "deps", f"{hdfs.url}/new/deps"
    command = by_uv(tmp_path / "wheels", target)
    _, told = start(hosts[0], url, target, command, wait=True).communicate(timeout=4 * PATIENCE)
    assert "published" in told
    shutil.rmtree(target)
    job = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with job:
        _, told = start(hosts[1], url, target, ["false"], user=job.pid).communicate(timeout=PATIENCE)
        assert "mounted at" in told
        assert imported(target).stdout == "7 320000\n"
        job.kill()
    eventually(lambda: kernel.find_mount(str(target)) is None, "the end of the mount")
