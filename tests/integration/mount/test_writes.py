"""Writing through real mounts of a local directory: what every program relies on."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.refusals import refused
from tests.support.written_mounts import writable
from tests.tools.mounts import MIB, Mounts

pytestmark = pytest.mark.mount


def test_open_flags_and_refusals(mounts: Mounts) -> None:
    mounts.forgive("has no version yet")
    mounted = mounts.mount(rw=True)
    m, s = mounted.path, mounts.source
    first = os.open(m / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    with refused(errno.EEXIST):
        os.open(m / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    with refused(errno.EBUSY):
        os.open(m / "f", os.O_WRONLY)
    with refused(errno.EBUSY):  # it has no version that could be read
        os.open(m / "f", os.O_RDONLY)
    assert os.write(first, b"old") == 3
    assert (os.fstat(first).st_size, os.stat(m / "f").st_size) == (3, 3)
    assert not (s / "f").exists()
    (s / "e").touch()
    (s / "g").touch()
    assert sorted(os.listdir(m)) == ["e", "f", "g"]
    os.close(first)
    assert ((s / "f").read_bytes(), (s / "f").stat().st_mode & 0o777) == (b"old", 0o640)

    reader = os.open(m / "f", os.O_RDONLY)
    writer = os.open(m / "f", os.O_WRONLY | os.O_TRUNC)
    with refused(errno.EBUSY):
        os.open(m / "f", os.O_WRONLY | os.O_APPEND)
    os.write(writer, b"new version")
    assert (m / "f").read_bytes() == b"old"  # until it is closed
    os.close(writer)
    assert (m / "f").read_bytes() == (s / "f").read_bytes() == b"new version"
    assert (m / "f").stat().st_size == 11
    with contextlib.suppress(OSError):  # its version, or an error
        assert os.pread(reader, 100, 0) == b"old"
    os.close(reader)

    with open(m / "rw", "w+b", buffering=0) as both:
        both.write(b"0123456789")
        with refused(errno.EOPNOTSUPP):
            os.pwrite(both.fileno(), b"x", 2)
        with refused(errno.EOPNOTSUPP):  # its bytes are not those that were written
            os.close(os.dup(both.fileno()))
            os.fsync(both.fileno())
        both.truncate(0)
        both.seek(0)
        both.write(b"again")
    assert (m / "rw").read_bytes() == b"again"

    with refused(errno.EPERM):
        os.rename(m / "f", m / ".x.stripefs-lock")
    with refused(errno.EPERM):
        os.symlink("f", m / "link")
    with refused(errno.EPERM):
        os.link(m / "f", m / "link")
    with refused(errno.EOPNOTSUPP):
        os.setxattr(m / "f", "user.other", b"x")
    os.mkdir(m / "d")
    with refused(errno.EINVAL):
        os.setxattr(m / "d", "user.stripefs.layout", b"round")
    with refused(errno.ENODATA):
        os.removexattr(m / "d", "user.stripefs.layout")
    os.setxattr(m / "d", "user.stripefs.layout", b"striped")
    assert os.getxattr(m / "d", "user.stripefs.layout") == b"striped"
    (m / "d" / "below").mkdir()
    (m / "d" / "below" / "big").write_bytes(bytes(9 * MIB))
    assert (s / "d" / "below" / "big").stat().st_size <= 1 << 16  # a manifest
    assert (m / "d" / "below" / "big").read_bytes() == bytes(9 * MIB)
    mounts.forgive("EOPNOTSUPP", "only written from start to end", "is not published")
    assert mounted.stop() == 0


_RENAME = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
code = libc.renameat2(-100, os.fsencode(sys.argv[1]), -100, os.fsencode(sys.argv[2]), int(sys.argv[3]))
print(ctypes.get_errno() if code else 0)
"""


def _renameat2(source: Path, target: Path, flags: int) -> int:
    return int(subprocess.check_output([sys.executable, "-c", _RENAME, source, target, str(flags)]))


def test_flags_of_rename_and_long_names(mounts: Mounts) -> None:
    """Flags of rename, long names, and directories in which somebody writes."""
    mounted = mounts.mount(rw=True)
    m = mounted.path
    (m / "target").write_bytes(b"old")
    (m / "source").write_bytes(b"s")
    assert _renameat2(m / "source", m / "target", 1) == errno.EEXIST  # RENAME_NOREPLACE
    assert _renameat2(m / "source", m / "target", 2) == errno.EINVAL  # RENAME_EXCHANGE
    assert _renameat2(m / "source", m / "free", 1) == 0
    number = os.stat(m / "free").st_ino
    os.mkdir(m / "d")
    with open(m / "d" / "f", "wb", buffering=0) as below:
        below.write(b"x")
        with refused(errno.EBUSY):
            os.rename(m / "d", m / "e")
    for call in (Path.touch, os.stat, os.unlink):
        with refused(errno.ENAMETOOLONG):
            call(m / ("n" * 256))
    os.rename(m / "free", m / "d" / "free")
    os.rename(m / "d", m / "e")
    assert os.stat(m / "e" / "free").st_ino == number
    assert (m / "e" / "free").read_bytes() == b"s"
    assert sorted(os.listdir(m)) == ["e", "target"]
    assert mounted.stop() == 0


def test_a_new_file_that_is_read_while_it_is_written(mounts: Mounts) -> None:
    """git does so with the pack of a clone, which it can with staging."""
    mounted = mounts.start(writable(mounts, staging=mounts.folder / "staging")).wait_ready()
    with open(mounted.path / "pack", "x+b", buffering=0) as pack:
        pack.write(b"one")
        with open(mounted.path / "pack", "rb", buffering=0) as reader:
            assert reader.read() == b"one"
            os.pwrite(pack.fileno(), b"two", 2)
            assert os.pread(reader.fileno(), 10, 0) == b"ontwo"
    assert (mounted.path / "pack").read_bytes() == b"ontwo"
