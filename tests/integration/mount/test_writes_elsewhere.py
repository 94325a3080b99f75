"""Two mounts of one source, as two nodes have them: what one may do to the names of files that the other one writes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stripefs.format.lock_and_record import LEASE
from tests.support.refusals import errno_of
from tests.support.written_mounts import hidden, writable
from tests.tools.mounts import MIB, Mounted, Mounts, eventually

pytestmark = pytest.mark.mount

OLD, NEW, CLOSED = (byte * 9 * MIB for byte in (b"o", b"n", b"c"))


def _outcomes(*calls: Callable[[], object]) -> list[int]:
    """The error number of each call, 0 for success, all of them made at once."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(errno_of, calls))


def _two(mounts: Mounts) -> tuple[Mounted, Mounted]:
    here, there = (mounts.start(writable(mounts, layout="striped", attr_timeout=0.05)).wait_ready() for _ in range(2))
    for name in ("onto", "away", "gone", "free"):
        (here.path / name).mkdir()
        (here.path / name / "model").write_bytes(OLD)
        (here.path / name / "closed").write_bytes(CLOSED)
    eventually(lambda: (there.path / "free/model").exists(), "the files on the other node")
    return here, there


def _changes(path: Path) -> list[Callable[[], object]]:
    """Calls that are refused; in directories of their own, since the kernel lets one change wait for another."""
    return [
        lambda: os.replace(path / "onto/closed", path / "onto/model"),
        lambda: os.replace(path / "away/model", path / "away/kept"),
        lambda: os.unlink(path / "gone/model"),
    ]


def test_names_that_another_node_writes(mounts: Mounts) -> None:
    mounts.forgive("is being written by")
    here, there = _two(mounts)
    writers = [os.open(there.path / name / "model", os.O_WRONLY | os.O_TRUNC) for name in ("onto", "away", "gone")]
    for writer in writers:
        os.write(writer, NEW)
    assert _outcomes(*_changes(here.path)) == [errno.EBUSY] * 3
    assert here.log_text().count("is being written by") == 3
    os.replace(here.path / "free/closed", here.path / "free/model")  # it has no writer
    for writer in writers:
        os.close(writer)
    for name in ("onto", "away", "gone"):
        assert (there.path / name / "model").read_bytes() == NEW
    assert _outcomes(*_changes(here.path)) == [0] * 3  # closed: the locks are on their way out, if not gone
    eventually(lambda: here.status()["writer"]["buried_versions"] == 0, "the end of what was replaced")
    assert (here.path / "onto/model").read_bytes() == CLOSED
    assert (here.path / "away/kept").read_bytes() == NEW
    assert sorted(os.listdir(here.path / "gone")) == ["closed"]
    for mounted in (here, there):
        assert mounted.stop() == 0
    assert hidden(mounts.source) == []


def test_names_whose_writer_is_dead(mounts: Mounts) -> None:
    """A lock that has run out hinders nobody; who comes back after all publishes nothing."""
    mounts.forgive("was lost", "is not published")
    here, there = _two(mounts)
    writers = [os.open(there.path / name / "model", os.O_WRONLY | os.O_APPEND) for name in ("onto", "away", "gone")]
    for name, writer in zip(("onto", "away", "gone"), writers, strict=True):
        os.write(writer, NEW)
        then = time.time() - LEASE - 5
        os.utime(mounts.source / name / ".model.stripefs-lock", (then, then))
    assert _outcomes(*_changes(here.path)) == [0] * 3
    assert set(_outcomes(*(lambda writer=writer: os.close(writer) for writer in writers))) <= {errno.EIO, errno.ESTALE}
    assert (here.path / "onto/model").read_bytes() == CLOSED
    assert (here.path / "away/kept").read_bytes() == OLD
    assert sorted(os.listdir(here.path / "gone")) == ["closed"]
    for mounted in (here, there):
        assert mounted.stop() == 0
