"""Files that are read, next to what Python's own file of the same bytes does."""

from __future__ import annotations

import errno
import io
import mmap
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stripefs
from stripefs.api import engine
from tests.support.examples import examples
from tests.support.python_api import MIB, content, spread
from tests.support.refusals import refused

SIZE = 5 * MIB + 12345


@pytest.fixture(scope="module")
def data() -> bytes:
    lines = content(SIZE // 2).replace(b"\n", b"\n\n")
    return (lines + content(SIZE, 2))[:SIZE]


@pytest.fixture
def big(place: Path, data: bytes) -> str:
    (place / "big").write_bytes(data)
    return str(place / "big")


_OFFSETS = st.integers(0, SIZE + 10) | st.sampled_from([0, MIB - 1, MIB, MIB + 1, 3 * MIB, SIZE - 1, SIZE, SIZE + 1])
_SIZES = st.integers(0, 3 * MIB) | st.integers(0, 100) | st.sampled_from([MIB - 1, MIB, MIB + 1])
_CALLS = st.one_of(
    st.tuples(st.just("seek"), _OFFSETS),
    st.tuples(st.just("skip"), st.integers(-2 * MIB, 2 * MIB)),
    st.tuples(st.just("back from the end"), st.integers(0, SIZE)),
    st.tuples(st.just("read"), _SIZES | st.just(-1)),
    st.tuples(st.just("readinto"), _SIZES),
    st.tuples(st.just("readline"), st.sampled_from([-1, 0, 5, 1000])),
    st.tuples(st.just("pread"), st.tuples(_OFFSETS, _SIZES)),
    st.tuples(st.just("peek"), st.integers(0, 10)),
)


def _make(file: io.BufferedIOBase, call: str, value: object) -> object:
    match call, value:
        case "seek", int():
            return file.seek(value)
        case "skip", int():
            return file.seek(max(-file.tell(), value), os.SEEK_CUR)
        case "back from the end", int():
            return file.seek(-min(value, file.seek(0, os.SEEK_END)), os.SEEK_END)
        case "readinto", int():
            buffer = bytearray(value)
            return file.readinto(buffer), buffer
        case "pread", (offset, size):
            if isinstance(file, stripefs.ReadFile):
                return file.pread(offset=offset, length=size)
            return os.pread(file.fileno(), size, offset)
        case "peek", int():
            return file.peek(value)[:1]  # type: ignore[attr-defined]  # the length is its own choice
        case "read", int():
            return file.read(value)
        case _:
            return file.readline(value)  # type: ignore[arg-type]


@examples(60)
@given(calls=st.lists(_CALLS, max_size=30), empty=st.sampled_from([False, False, False, True]))
def test_it_is_the_file_that_python_opens(
    calls: list[tuple[str, object]], empty: bool, opened: list[tuple[stripefs.ReadFile, Path]]
) -> None:
    ours, path = opened[empty]
    ours.seek(0)
    with open(path, "rb") as theirs:
        for call, value in calls:
            assert _make(ours, call, value) == _make(theirs, call, value)
            assert ours.tell() == theirs.tell()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> Iterator[list[tuple[stripefs.ReadFile, Path]]]:
    """A big file and an empty one."""
    root = tmp_path_factory.mktemp("opened")
    (root / "big").write_bytes(data)
    (root / "empty").touch()
    with stripefs.open(str(root / "big")) as big, stripefs.open(str(root / "empty")) as empty:
        yield [(big, root / "big"), (empty, root / "empty")]


def test_what_python_can_ask_of_a_file(big: str, data: bytes) -> None:
    with stripefs.open(big) as file:
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        assert (file.closed, file.mode) == (False, "rb")
        assert (file.name, file.size) == (big, SIZE)
        assert b"".join(file) == data
        file.seek(0)
        buffered = io.BufferedReader(file)  # type: ignore[type-var]
        assert buffered.read(3 * MIB) == data[: 3 * MIB]
        assert buffered.detach() is file
        file.seek(0)
        assert file.read1(10) == data[:10]
        assert len(file.read1()) == MIB
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        with pytest.raises(ValueError, match="before the file's start"):
            file.seek(-1)
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 7)
        with pytest.raises(TypeError, match="pickle its URL"):
            pickle.dumps(file)


def test_buffers_of_all_kinds_are_filled(big: str, data: bytes) -> None:
    with stripefs.open(big) as file, mmap.mmap(-1, 2 * MIB) as mapped:
        assert file.readinto(mapped) == 2 * MIB
        assert mapped[:] == data[: 2 * MIB]
        doubles = memoryview(bytearray(8000)).cast("d")
        assert file.pread_into(doubles, 100) == 8000
        assert doubles.tobytes() == data[100:8100]
        rows = np.zeros((100, 7), np.int16)
        assert file.readinto(rows) == 1400
        assert rows.tobytes() == data[2 * MIB :][:1400]
        assert file.readinto(np.zeros((0, 7))) == file.pread_into(np.zeros(0), 5) == 0
        with pytest.raises(TypeError):
            file.readinto(rows[:, 1])
        with pytest.raises((TypeError, BufferError, ValueError)):
            file.readinto(b"read only")  # type: ignore[arg-type]


def test_many_ranges_at_once(big: str, data: bytes) -> None:
    wanted = [(offset, 70_000) for offset in range(SIZE - 10, 0, -90_000)]
    with stripefs.open(big) as file:
        assert file.read_ranges(wanted) == [data[offset : offset + 70_000] for offset, _ in wanted]
        buffers = [bytearray(size) for _, size in wanted]
        assert file.read_ranges_into(zip((o for o, _ in wanted), buffers, strict=True)) == sum(
            len(data[offset : offset + size]) for offset, size in wanted
        )
        assert bytes(buffers[-1]) == data[wanted[-1][0] :][:70_000]
        assert file.tell() == 0


@pytest.mark.parametrize("bad", [(-1, 5), (5, -1)])
def test_no_range_is_negative(big: str, bad: tuple[int, int]) -> None:
    with stripefs.open(big) as file:
        with pytest.raises(ValueError, match="negative"):
            file.pread(offset=bad[0], length=bad[1])
        with pytest.raises(ValueError, match="negative"):
            file.read_ranges([bad])


def test_sixteen_threads_read_one_file(big: str, place: Path, data: bytes) -> None:
    url = spread(place).replace("?", "/big?", 1)

    def read(number: int) -> bool:
        with stripefs.open(url) as file:
            offsets = range(number * 1000, SIZE, SIZE // 16)
            return all(file.pread(offset=offset, length=9999) == data[offset : offset + 9999] for offset in offsets)

    def read_on(_: int) -> bytes:
        return shared.read(SIZE // 16 + 1)

    with ThreadPoolExecutor(16) as threads, stripefs.open(url) as shared:
        assert all(threads.map(read, range(16)))
        assert sorted(threads.map(read_on, range(16))) == sorted(
            data[at : at + SIZE // 16 + 1] for at in range(0, SIZE, SIZE // 16 + 1)
        )


class _Gate:
    """Holds up the transfers of a file until `open` is set."""

    def __init__(self, file: stripefs.ReadFile, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.waiting = threading.Event(), threading.Event()
        self._transfer = file._transfer
        monkeypatch.setattr(file, "_transfer", self)

    def __call__(self, offset: int, view: memoryview) -> None:
        self.waiting.set()
        assert self.open.wait(60)
        self._transfer(offset, view)


@pytest.mark.parametrize("size", [100, 2 * MIB])
def test_a_read_keeps_the_position_that_it_began_at(
    big: str, data: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stripefs.open(big) as file, ThreadPoolExecutor(2) as threads:
        gate = _Gate(file, monkeypatch)
        file.seek(1000)
        first = threads.submit(file.read, size)
        assert gate.waiting.wait(60)
        assert file.tell() == 1000 + size  # nor does the read that waits hold up anybody
        assert file.seek(3 * MIB) == 3 * MIB
        gate.waiting.clear()
        buffer = bytearray(size)
        second = threads.submit(file.readinto, buffer)
        assert gate.waiting.wait(60)
        file.seek(5)
        gate.open.set()
        assert first.result() == data[1000 : 1000 + size]
        assert second.result() == size
        assert buffer == data[3 * MIB :][:size]
        assert file.tell() == 5


@pytest.mark.parametrize("moved", [False, True])
def test_a_read_that_failed_is_as_if_it_had_not_begun(
    big: str, data: bytes, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stripefs.open(big) as file:

        def fail(offset: int, view: memoryview) -> None:
            if moved:
                file.seek(7)
            raise OSError(errno.EIO, "the store is away")

        file.seek(1000)
        with monkeypatch.context() as patch:
            patch.setattr(file, "_transfer", fail)
            with pytest.raises(OSError, match="away"):
                file.read(10)
        assert file.tell() == (7 if moved else 1000)
        assert file.read(10) == data[file.tell() - 10 :][:10]


def test_threads_that_read_lines_get_each_once(place: Path) -> None:
    wanted = [b"%063d\n" % number for number in range(3 * MIB // 64)]
    (place / "lines").write_bytes(b"".join(wanted))
    with stripefs.open(str(place / "lines")) as file, ThreadPoolExecutor(4) as threads:
        got = threads.map(lambda _: list(file), range(4))
        assert sorted(line for lines in got for line in lines) == wanted


def test_the_order_of_os_pread_is_refused(big: str) -> None:
    with stripefs.open(big) as file:
        with pytest.raises(TypeError, match="'offset' and 'length'"):
            file.pread(10, 0)  # type: ignore[call-arg, arg-type]
        with pytest.raises(TypeError, match=r"by name: pread\(offset=…, length=…\)"):
            file.pread(10, offset=0, length=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("missing", FileNotFoundError), ("folder", IsADirectoryError), ("file/below", NotADirectoryError)],
)
def test_errors_are_python_s_own(place: Path, name: str, kind: type[OSError]) -> None:
    (place / "folder").mkdir()
    (place / "file").touch()
    with pytest.raises(kind) as caught:
        stripefs.open(str(place / name))
    assert caught.value.filename == str(place / name)
    assert caught.value.errno
    assert isinstance(caught.value.__cause__, Exception)


def test_an_error_of_one_range_is_that_of_all(big: str) -> None:
    url = f"faulty+file://{big}?kinds=wrong&on=read&nth=3"
    with stripefs.open(url) as file, pytest.raises(OSError, match="unexpectedly") as caught:
        file.read_ranges([(offset, 1000) for offset in range(0, SIZE, MIB)])
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == url


def test_a_closed_file(big: str) -> None:
    file = stripefs.open(big)
    file.close()
    file.close()
    assert file.closed
    for call in (file.read, file.tell, file.readline, file.peek, file.readable, lambda: file.pread(offset=0, length=1)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_it_goes_on_with_another_engine(big: str, data: bytes) -> None:
    with stripefs.open(big) as file:
        assert file.read(5) == data[:5]
        engine.stop()
        assert file.pread(offset=3 * MIB, length=5) == data[3 * MIB :][:5]
        assert file.read(5) == data[5:10]
        engine.stop()
        os.utime(big, ns=(1, 1))
        with refused(errno.ESTALE):
            file.pread(offset=3 * MIB, length=5)
