"""Mounts of stores that fail: what does not heal is an errno and a line, and the mount stays."""

from __future__ import annotations

import errno
import os

import pytest

from tests.support.refusals import refused
from tests.tools.mounts import Mounts

pytestmark = pytest.mark.mount


def test_a_store_that_stays_away(mounts: Mounts) -> None:
    mounts.forgive("an injected failure")
    (mounts.source / "file").write_text("x")
    mounted = mounts.mount(mounts.url("faulty+", "?rate=1&kinds=service&on=open"), io_timeout=0.5)
    for _ in range(2):
        with refused(errno.EIO):
            (mounted.path / "file").read_bytes()
    assert os.listdir(mounted.path) == ["file"]
    assert mounted.log_text().count("WARNING stripefs.fuse.operations: open: ") == 1
    assert mounted.status()["requests"]["failed"] == 2


def test_a_client_with_a_bug(mounts: Mounts) -> None:
    mounts.forgive("failed unexpectedly", "Traceback")
    (mounts.source / "file").write_text("x")
    mounted = mounts.mount(mounts.url("faulty+", "?rate=1&kinds=wrong&on=open"))
    with refused(errno.EIO):
        (mounted.path / "file").read_bytes()
    assert os.listdir(mounted.path) == ["file"]
    assert mounted.status()["restarts"] == 0
    assert "open failed unexpectedly; please report this" in mounted.log_text()
