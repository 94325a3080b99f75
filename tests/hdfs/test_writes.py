"""A mount of a real HDFS that is written to: every layout, through the kernel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.tools.hdfs import HdfsInstance
from tests.tools.mounts import MIB, REPLACED, Mounts, sha256

pytestmark = [pytest.mark.cluster, pytest.mark.mount]


@pytest.mark.parametrize("layout", ["concat", "striped", "plain"])
def test_a_checkpoint_is_saved(hdfs: HdfsInstance, mounts: Mounts, tmp_path: Path, layout: str) -> None:
    """Saved below another name, renamed, read back, replaced, appended to; and a worker that dies on the way."""
    mounts.forgive(REPLACED, "big files are written as", "was being written when the worker ended")
    data = tmp_path / "data"
    data.write_bytes(os.urandom(24 * MIB + 5))
    mounted = mounts.mount(hdfs.url, rw=True, attr_timeout=0.2)
    top = mounted.path / f"writes-{layout}"
    top.mkdir()
    os.setxattr(top, "user.stripefs.layout", layout.encode())
    (top / "tmp").mkdir()
    for name in ("rank0", "rank1"):
        subprocess.run(["cp", str(data), str(top / "tmp" / name)], check=True, timeout=120)
    with open(top / "tmp" / "meta.json", "w") as file:
        file.write("{}")
    os.rename(top / "tmp", top / "step1")
    assert sorted(os.listdir(top)) == ["step1"]
    for name in ("rank0", "rank1"):
        assert (top / "step1" / name).stat().st_size == 24 * MIB + 5
        assert sha256(top / "step1" / name) == sha256(data)
    with open(top / "step1" / "rank0", "ab") as file:
        file.write(b"more")
    assert (top / "step1" / "rank0").read_bytes() == data.read_bytes() + b"more"
    os.replace(top / "step1" / "rank1", top / "step1" / "rank0")
    assert sha256(top / "step1" / "rank0") == sha256(data)
    os.chmod(top / "step1" / "rank0", 0o600)
    os.utime(top / "step1" / "rank0", (1000, 2000))
    found = os.stat(top / "step1" / "rank0")
    assert (found.st_mode & 0o777, found.st_mtime) == (0o600, 2000)

    subprocess.run(["cp", "-r", str(top / "step1"), str(top / "step2")], check=True, timeout=120)
    subprocess.run(["rm", "-r", str(top / "step2")], check=True, timeout=120)
    assert not (top / "step2").exists()

    writer = os.open(top / "step1" / "rank0", os.O_WRONLY | os.O_TRUNC)
    os.write(writer, b"lost" * MIB)
    mounted.kill_worker()
    for call in (os.fsync, os.close):
        with pytest.raises(OSError, match="Input/output error"):
            call(writer)
    assert sha256(top / "step1" / "rank0") == sha256(data)
    assert mounted.stop() == 0
