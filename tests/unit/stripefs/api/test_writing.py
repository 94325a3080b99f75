"""Files that are written: what becomes visible when, in every layout, and what an error leaves."""

from __future__ import annotations

import errno
import os
import pickle
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import stripefs
from stripefs.api import engine
from tests.support.python_api import LAYOUTS, MIB, content, names, spread
from tests.support.refusals import refused
from tests.support.uploads import hidden

SIZE = 20 * MIB + 321


@pytest.fixture(scope="module")
def data() -> bytes:
    return content(SIZE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_back(place: Path, data: bytes, layout: str) -> None:
    fs = stripefs.connect(spread(place), layout=layout, unit="1MiB", memory="64MiB")
    with fs.open("file", "wb") as file:
        for at in range(0, SIZE, 300_007):
            assert file.write(data[at : at + 300_007]) == len(data[at : at + 300_007])
            assert file.tell() == min(SIZE, at + 300_007)
        assert fs.listdir() == []
    assert file.status is not None
    assert (file.status.length, file.closed) == (SIZE, True)
    assert fs.read_bytes("file") == data
    assert (fs.stat("file").size, fs.listdir()) == (SIZE, ["file"])
    assert stripefs.connect(spread(place)).read_bytes("file") == data
    if layout == "striped":
        assert (place / "file").stat().st_size < MIB
    else:
        assert (place / "file").read_bytes() == data
        assert hidden(place) == set()


def test_what_is_written_belongs_to_the_writer_of_the_buffer_again(place: Path) -> None:
    with stripefs.open(str(place / "file"), "wb") as file:
        buffer = bytearray(b"a" * 3 * MIB)
        file.write(buffer)
        buffer[:] = b"b" * 3 * MIB
        file.write(memoryview(buffer).cast("Q"))
    assert (place / "file").read_bytes() == b"a" * 3 * MIB + b"b" * 3 * MIB


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exception_publishes_nothing(place: Path, data: bytes, layout: str) -> None:
    fs = stripefs.connect(spread(place), layout=layout, unit="1MiB")
    fs.write_bytes("file", b"before")
    with pytest.raises(KeyError), fs.open("file", "wb") as file:
        _write_and_fail(file, data)
    assert file.closed
    assert fs.read_bytes("file") == b"before"
    with pytest.raises(KeyError), fs.open("new", "wb") as file:
        _write_and_fail(file, b"")
    assert fs.listdir() == ["file"]
    assert hidden(place) == set()


def _write_and_fail(file: stripefs.WriteFile, data: bytes) -> None:
    file.write(data)
    raise KeyError


def test_a_file_that_is_let_go_of_is_not_published(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [stripefs.open(str(place / "file"), "wb")]
    files[0].write(b"half")
    files.clear()
    assert [line.getMessage() for line in caplog.records] == [f"{place}/file was never closed, so it is not published"]
    with stripefs.open(str(place / "file"), "xb", io_timeout=10) as file:  # its lock goes
        file.write(b"whole")
    assert (place / "file").read_bytes() == b"whole"


def test_exclusive(place: Path) -> None:
    with stripefs.open(str(place / "file"), "xb") as file:
        with pytest.raises(FileExistsError, match="being written"):
            stripefs.open(str(place / "file"), "xb")
        file.write(b"first")
    with pytest.raises(FileExistsError):
        stripefs.open(str(place / "file"), "xb")
    assert (place / "file").read_bytes() == b"first"
    assert hidden(place) == set()
    (place / "folder").mkdir()
    for mode in ("wb", "xb", "ab"):
        with pytest.raises(OSError, match=r"folder|exists"):
            stripefs.open(str(place / "folder"), mode)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_appending(place: Path, data: bytes, layout: str) -> None:
    fs = stripefs.connect(spread(place), layout=layout, unit="1MiB")
    with fs.open("file", "ab") as file:
        assert file.write(data) == SIZE
    with fs.open("file", "ab") as file:
        assert file.tell() == SIZE
        file.write(data[::-1])
    with fs.open("small", "ab") as file:
        file.write(b"one")
    with fs.open("small", "ab") as file:
        file.write(b" two")
    assert fs.read_bytes("file") == data + data[::-1]
    assert fs.read_bytes("small") == b"one two"


def test_what_a_writer_cannot_do(place: Path) -> None:
    with stripefs.open(str(place / "file"), "wb") as file:
        assert (file.readable(), file.seekable(), file.writable()) == (False, False, True)
        for call in (file.read, lambda: file.seek(0), file.fileno, lambda: file.truncate(0)):
            with pytest.raises(OSError, match=r"."):
                call()
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(file)
        with pytest.raises(TypeError):
            file.write("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    for mode in ("r", "w", "rb+", "wt", ""):
        with pytest.raises(ValueError, match="none of rb"):
            stripefs.open(str(place / "file"), mode)


def test_the_umask_holds_for_what_is_new(place: Path) -> None:
    before = os.umask(0o027)
    try:
        stripefs.connect(str(place)).write_bytes("file", b"x")
        stripefs.connect(str(place)).mkdir("folder")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((place / name).stat().st_mode) for name in ("file", "folder")] == [0o640, 0o750]


def test_sync_keeps_what_was_written(place: Path, data: bytes) -> None:
    with stripefs.open(str(place / "file"), "wb") as file:
        file.write(data)
        file.sync()
        assert any("record" in name for name in hidden(place))
        assert not (place / "file").exists()
        file.write(b"more")
    assert (place / "file").read_bytes() == data + b"more"
    assert hidden(place) == set()


def test_a_deferred_file_waits(place: Path, data: bytes) -> None:
    fs = stripefs.connect(str(place))
    files = [fs.open(f"file{number}", "wb", deferred=True) for number in range(4)]
    for file in files:
        with file:
            file.write(data)
    assert fs.listdir() == []
    files[0].commit()
    files[1].discard()
    assert fs.listdir() == ["file0"]
    with pytest.raises(OSError, match="being written"):
        fs.open("file2", "wb")
    files[2].commit()
    files[2].commit()
    files[3].discard()
    files[3].commit()
    assert fs.listdir() == ["file0", "file2"]
    assert fs.read_bytes("file2") == data
    assert hidden(place) == set()


@pytest.mark.parametrize("call", ["create", "write", "close", "rename"])
def test_what_the_store_fails_is_told(place: Path, data: bytes, call: str) -> None:
    """And nothing is published then."""
    url = f"faulty+file://{place}?kinds=space&on={call}&rate=1"
    with refused(errno.ENOSPC), stripefs.connect(url).open("file", "wb") as file:
        file.write(data)
    assert not (place / "file").exists()
    with stripefs.open(str(place / "file"), "xb") as file:
        file.write(b"room again")


def test_an_interrupted_write_is_not_published(place: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stripefs.open(str(place / "file"), "wb")
    file.write(data)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(file, "_engine", SimpleNamespace(call=interrupted, pid=os.getpid(), usable=True))
        with pytest.raises(KeyboardInterrupt):
            file.write(data)
    with pytest.raises(OSError, match="not published"):
        file.close()
    assert file.closed
    assert names(place) == set()


def test_threads_write_files_of_their_own_and_one_together(place: Path, data: bytes) -> None:
    fs = stripefs.connect(spread(place), layout="striped", unit="1MiB")

    def save(number: int) -> None:
        with fs.open(f"file{number}", "wb") as file:
            file.write(data[number:])

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(save, range(16)))
        with fs.open("together", "wb") as file:
            list(threads.map(lambda letter: file.write(letter * 200_000), [b"a", b"b", b"c", b"d"] * 10))
    for number in range(16):
        assert fs.read_bytes(f"file{number}") == data[number:]
    together = fs.read_bytes("together")
    pieces = [together[at : at + 200_000] for at in range(0, len(together), 200_000)]
    assert sorted(pieces) == sorted(letter * 200_000 for letter in (b"a", b"b", b"c", b"d") * 10)


def test_the_engine_ends_while_files_are_written(place: Path, data: bytes) -> None:
    file = stripefs.open(str(place / "file"), "wb")
    file.write(data)
    engine.stop()
    with refused(errno.ESHUTDOWN):
        file.close()
    assert names(place) == set()
    with stripefs.open(str(place / "file"), "xb") as file:
        file.write(b"anew")
