"""Dependency snapshots in a real HDFS: one host publishes, another mounts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.deps.test_hot import hosts
from tests.support.deps.installed import imported
from tests.support.deps.starting import Starts, away, is_mounted
from tests.support.deps.wheels import wheel
from tests.tools.hdfs import HdfsInstance
from tests.tools.imagefs_daemon import Service, eventually

__all__ = ["hosts"]

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.mount, pytest.mark.slow]


def test_one_publishes_and_another_mounts(hdfs: HdfsInstance, hosts: list[Service], tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": b"0123456789abcdef" * 20_000}
    wheel(tmp_path / "wheels", "heavy", files)
    target = tmp_path / "deps"
    first, second = (Starts(host, f"{hdfs.url}/new/deps", tmp_path / "wheels", target) for host in hosts)
    assert "published" in first.run(wait=True)
    away(target)
    job = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with job:
        assert "mounted at" in second.run(["false"], user=job.pid)
        assert imported(target).stdout == "7 320000\n"
        job.kill()
    eventually(lambda: not is_mounted(target), "the end of the mount")
