"""Touches that no file asked for are told from others; where that cannot be done, all were asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from imagefs.format.trace import Touch
from imagefs.trace import finish
from imagefs.trace.finish import read_ahead, unread

KIB = 1 << 10
CHUNK = 64 * KIB


def touches(*places: tuple[bytes, int]) -> list[Touch]:
    return [Touch(ms, path, offset * CHUNK, CHUNK, bytes(16)) for ms, (path, offset) in enumerate(places)]


def files_read(*read: tuple[bytes, int]) -> finish.Look:
    """Tells that these chunks were read, each of a file in one call."""
    asked: set[bytes] = set()

    def look(path: bytes, ranges: Sequence[tuple[int, int]]) -> list[bool]:
        assert path not in asked
        asked.add(path)
        assert all(length == CHUNK for _, length in ranges)
        return [(path, offset // CHUNK) in read for offset, _ in ranges]

    return look


def test_what_was_only_read_ahead_is_named() -> None:
    found = touches((b"b", 0), (b"a", 3), (b"b", 1), (b"a", 0), (b"c", 0))
    assert unread(found, files_read((b"a", 0), (b"b", 0), (b"a", 3))) == [2, 4]
    assert unread([], files_read()) == []


@pytest.mark.parametrize(("read", "ahead"), [(0, 0), (1, 0), (2, 8), (10, 0)])
def test_emptied_caches_are_not_believed(read: int, ahead: int) -> None:
    found = touches(*((b"file", number) for number in range(10)))
    assert len(unread(found, files_read(*((b"file", number) for number in range(read))))) == ahead


def cold_file(path: Path, chunks: int) -> None:
    """A file of which the page cache holds nothing."""
    with path.open("wb") as file:
        file.write(os.urandom(chunks * CHUNK))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_chunks(path: Path, chunks: Iterable[int]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for chunk in chunks:
        os.pread(descriptor, 1, chunk * CHUNK + 5000)
    os.close(descriptor)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """The descriptor of `tmp_path`, which stands for the mount of an image."""
    (tmp_path / "lib").mkdir()
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_the_page_cache_tells_what_was_read(tmp_path: Path, root: int) -> None:
    for name in ("lib/a", "lib/b"):
        cold_file(tmp_path / name, 8)
    read_chunks(tmp_path / "lib/a", [1, 6])
    read_chunks(tmp_path / "lib/b", [7])
    found = touches(*((path, chunk) for path in (b"lib/a", b"lib/b") for chunk in range(1, 8, 2)), (b"lib/a", 6))
    ahead = read_ahead(found, root)
    read = [(touch.path, touch.offset // CHUNK) for number, touch in enumerate(found) if number not in ahead]
    assert read == [(b"lib/a", 1), (b"lib/b", 7), (b"lib/a", 6)]


def test_every_touch_counts_as_read_where_a_file_is_not_there(tmp_path: Path, root: int) -> None:
    cold_file(tmp_path / "lib/a", 8)
    read_chunks(tmp_path / "lib/a", [1])
    found = touches((b"lib/a", 1), (b"lib/a", 2), (b"lib/gone", 0))
    assert read_ahead(found, root) == []
    (tmp_path / "lib/gone").symlink_to("a")
    assert read_ahead(found, root) == []


def test_every_touch_counts_on_older_kernels(tmp_path: Path, root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cold_file(tmp_path / "lib/a", 4)
    read_chunks(tmp_path / "lib/a", [1])
    found = touches((b"lib/a", 1), (b"lib/a", 2))
    monkeypatch.setattr(finish, "_CACHESTAT", 100_000)  # which no kernel has
    assert read_ahead(found, root) == []
