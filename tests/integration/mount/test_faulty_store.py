"""Mounts of stores that fail: what heals is not seen, what does not heal is an errno and a line, the mount stays."""

from __future__ import annotations

import errno
import os
import random

import pytest

from tests.tools.mounts import MIB, Mounts, sha256

pytestmark = pytest.mark.mount


@pytest.mark.slow
def test_transient_faults_are_not_seen(mounts: Mounts) -> None:
    mounts.forgive("stripefs.read")
    rng = random.Random(4)
    for number in range(6):
        (mounts.source / f"f{number}").write_bytes(rng.randbytes(rng.randrange(2 * MIB)))
    mounted = mounts.mount(mounts.url("faulty+", "?rate=0.3&seed=1&kinds=service,transient&on=stat,scandir,open,read"))
    assert len(os.listdir(mounted.path)) == 6
    for file in mounts.source.iterdir():
        assert sha256(mounted.path / file.name) == sha256(file)
    assert mounted.status()["tree"]["metadata_retries"] > 0
    assert mounted.status()["requests"]["failed"] == 0


def test_a_store_that_stays_away(mounts: Mounts) -> None:
    mounts.forgive("an injected failure")
    (mounts.source / "file").write_text("x")
    mounted = mounts.mount(mounts.url("faulty+", "?rate=1&kinds=service&on=open"), io_timeout=0.5)
    for _ in range(2):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            (mounted.path / "file").read_bytes()
        assert caught.value.errno == errno.EIO
    assert os.listdir(mounted.path) == ["file"]
    assert mounted.log_text().count("WARNING stripefs.fuse.operations: open: ") == 1
    assert mounted.status()["requests"]["failed"] == 2


def test_a_client_with_a_bug(mounts: Mounts) -> None:
    mounts.forgive("failed unexpectedly", "Traceback")
    (mounts.source / "file").write_text("x")
    mounted = mounts.mount(mounts.url("faulty+", "?rate=1&kinds=wrong&on=open"))
    with pytest.raises(OSError) as caught:  # noqa: PT011
        (mounted.path / "file").read_bytes()
    assert caught.value.errno == errno.EIO
    assert os.listdir(mounted.path) == ["file"]
    assert mounted.status()["restarts"] == 0
    assert "open failed unexpectedly; please report this" in mounted.log_text()
