"""The kernel answers a read with zeros when nobody holds a group of pre-content events any more.

That is why devices that are filled on access are not offered (docs/image-path.md).

A sparse file stands for a device of an image. A process of its own holds the group, as a daemon would. When a test of
zeros fails, the kernel has learned to refuse such reads, and the mode can be reconsidered.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stripefs.osutil import check

pytestmark = pytest.mark.root

_SIZE, _RANGE = 1 << 20, 4096
_WITHIN = 30.0
"""Seconds for a read that is answered."""

_CONTENT = bytes(range(256)) * (_RANGE // 256)

_FAN_CLOEXEC, _FAN_CLASS_PRE_CONTENT = 0x1, 0x8
_FAN_MARK_ADD, _FAN_MARK_REMOVE = 0x1, 0x2
_FAN_PRE_ACCESS = 0x0010_0000
_FAN_ALLOW, _FAN_DENY = 1, 2
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")
"""Length, version, reserved, length of this part, mask, descriptor of the file, process."""

_ANSWER = struct.Struct("=iI")
_libc = ctypes.CDLL(None, use_errno=True)


class _Group:
    """A group that is asked before each read of the file at `path`. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = os.fsencode(path)
        self._descriptor = check(_libc.fanotify_init(_FAN_CLASS_PRE_CONTENT | _FAN_CLOEXEC, os.O_RDWR), "fanotify")
        self._mark(_FAN_MARK_ADD)

    def _mark(self, what: int) -> None:
        mask = ctypes.c_uint64(_FAN_PRE_ACCESS)
        check(_libc.fanotify_mark(self._descriptor, what, mask, _AT_FDCWD, self._path), os.fsdecode(self._path))

    def next_read(self) -> int:
        """Wait for the next one; the descriptor of its file, which nobody is asked about."""
        return int(_EVENT.unpack_from(os.read(self._descriptor, 4096))[5])

    def answer(self, file: int, how: int) -> None:
        os.write(self._descriptor, _ANSWER.pack(file, how))
        os.close(file)

    def unmark(self) -> None:
        """Be asked no more."""
        self._mark(_FAN_MARK_REMOVE)

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A file of one hole on a file system that has these events."""
    file = tmp_path / "device"
    with file.open("wb") as made:
        made.truncate(_SIZE)
    try:
        _Group(file).close()
    except OSError as error:
        pytest.skip(f"the kernel or the file system of {tmp_path} has no pre-content events: {error.strerror}")
    return file


def _told(reader: int, size: int) -> bytes:
    """At most so many bytes out of the pipe `reader`."""
    assert select.select([reader], [], [], _WITHIN)[0], "nothing came"
    return os.read(reader, size)


@contextmanager
def _forked(work: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A process that does `work(writer)`, killed at the end of the block; its id, and the other end of its pipe."""
    reader, writer = os.pipe()
    if not (process := os.fork()):
        try:
            work(writer)
        except BaseException as error:  # noqa: BLE001 the child must never come back into pytest
            sys.stderr.write(f"the child failed: {error!r}\n")
        finally:
            os._exit(0)
    os.close(writer)
    try:
        yield process, reader
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reader)


@contextmanager
def _holder(
    file: Path, body: Callable[[_Group, Callable[[str], object]], None]
) -> Iterator[tuple[int, Callable[[], str]]]:
    """A process that holds a group and does `body(group, say)`; its id, and what it says, a character a time."""

    def hold(writer: int) -> None:
        group = _Group(file)
        os.write(writer, b"m")
        body(group, lambda said: os.write(writer, said.encode()))
        signal.pause()

    with _forked(hold) as (process, reader):
        assert _told(reader, 1) == b"m"
        yield process, lambda: _told(reader, 1).decode()


@contextmanager
def _reading(file: Path, offset: int) -> Iterator[Callable[[], bytes]]:
    """Another process reads `_RANGE` bytes there; what it got, the error in words where the read failed."""

    def read(writer: int) -> None:
        try:
            with file.open("rb", buffering=0) as opened:
                os.write(writer, os.pread(opened.fileno(), _RANGE, offset))
        except OSError as error:
            os.write(writer, os.strerror(error.errno or 0).encode())

    with _forked(read) as (_, reader):
        yield lambda: _told(reader, _RANGE)


def _take_one(group: _Group, say: Callable[[str], object]) -> None:
    group.next_read()
    say("a")


def _fill_all(group: _Group, _say: Callable[[str], object]) -> None:
    while True:
        asked = group.next_read()
        os.pwrite(asked, _CONTENT * (_SIZE // _RANGE), 0)  # a write through this descriptor raises no event
        group.answer(asked, _FAN_ALLOW)


def _refuse_all(group: _Group, _say: Callable[[str], object]) -> None:
    while True:
        group.answer(group.next_read(), _FAN_DENY)


def test_a_read_gets_what_the_holder_fills_in_or_its_refusal(sparse: Path) -> None:
    """Without this the next tests would say nothing."""
    with _holder(sparse, _refuse_all), _reading(sparse, 0) as got:
        assert got() == b"Operation not permitted"
    with _holder(sparse, _fill_all), _reading(sparse, 8 * _RANGE) as got:
        assert got() == _CONTENT


def test_a_read_that_waits_when_the_last_holder_is_killed_returns_zeros(sparse: Path) -> None:
    with _holder(sparse, _take_one) as (process, said), _reading(sparse, 0) as got:
        assert said() == "a"  # the read waits for the answer
        os.kill(process, signal.SIGKILL)
        assert got() == bytes(_RANGE)
        with _reading(sparse, 4 * _RANGE) as later:
            assert later() == bytes(_RANGE)


def test_a_whole_file_without_a_mark_needs_no_holder(sparse: Path) -> None:
    def fill_and_let_go(group: _Group, say: Callable[[str], object]) -> None:
        asked = group.next_read()
        os.pwrite(asked, _CONTENT * (_SIZE // _RANGE), 0)
        group.unmark()
        group.answer(asked, _FAN_ALLOW)
        say("u")

    with _holder(sparse, fill_and_let_go) as (_, said), _reading(sparse, 0) as got:
        assert (got(), said()) == (_CONTENT, "u")
    with _reading(sparse, 4 * _RANGE) as got:
        assert got() == _CONTENT
