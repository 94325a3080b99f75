"""Local files while they are copied: what is kept of them, and what is made of that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.copy.output import HEAD, STEP, FileMetadata, Partial, Spoiled
from stripefs.errors import IsADirectory, NoSpace
from stripefs.format.blocks import CHECK, SUM, check_sums
from tests.support.python_api import content

LENGTH = 3 * STEP + 5
DATA = content(LENGTH)
LOOKS = FileMetadata(0o644)


def begun(path: Path, steps: int, origin: bytes = b"one", data: bytes = DATA, looks: FileMetadata = LOOKS) -> Partial:
    """A file of which so many steps have come, and further ones come."""
    partial = Partial(os.fsencode(path), len(data), origin, looks)
    for _ in range(steps):
        view = memoryview(data)[partial.done :][:STEP]
        partial.write(view, check_sums(view))
    return partial


def ignore(_size: int) -> None:
    pass


def test_a_file_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    partial = begun(path, 4, looks=FileMetadata(0o640, 1_500_000_000_000_000_000))
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == [".file.stripefs-copy", "file"]
    told: list[int] = []
    partial.publish(told.append)
    assert sum(told) == LENGTH
    assert path.read_bytes() == DATA
    assert (path.stat().st_mode & 0o7777, path.stat().st_mtime_ns) == (0o640, 1_500_000_000_000_000_000)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("size", [0, 1, STEP])
def test_small_files_leave_nothing_to_go_on_with(tmp_path: Path, size: int) -> None:
    partial = begun(tmp_path / "file", 1, data=DATA[:size])
    assert not partial.keep()
    assert os.listdir(tmp_path) == []
    partial = begun(tmp_path / "file", 1, data=DATA[:size])
    partial.publish(ignore)
    assert (tmp_path / "file").read_bytes() == DATA[:size]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_it_is_gone_on_with(tmp_path: Path, steps: int) -> None:
    assert begun(tmp_path / "file", steps).keep()
    partial = begun(tmp_path / "file", 0)
    assert partial.done == min(steps * STEP, LENGTH)
    partial.keep()
    partial = begun(tmp_path / "file", 4 - steps)
    partial.publish(ignore)
    assert (tmp_path / "file").read_bytes() == DATA


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda file: flip(file, CHECK + 7), CHECK),
        (lambda file: flip(file, 0), 0),
        (lambda file: flip(file, LENGTH + 3), 0),  # the mark
        (lambda file: flip(file, LENGTH + HEAD + 5 * SUM), 5 * CHECK),  # the checksum of the sixth MiB
        (lambda file: os.truncate(file, LENGTH + HEAD + 3 * SUM + 5), 3 * CHECK),  # the last one is torn
        (lambda file: os.truncate(file, LENGTH), 0),
        (lambda file: os.truncate(file, 100), 0),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), 0),  # names, but no bytes reached the disk
    ],
)
def test_what_a_crash_spoilt_comes_again(tmp_path: Path, damage: Callable[[Path], object], left: int) -> None:
    begun(tmp_path / "file", 2).keep()
    damage(tmp_path / ".file.stripefs-copy")
    partial = begun(tmp_path / "file", 0)
    assert partial.done == left
    partial.drop()
    assert os.listdir(tmp_path) == []


def test_another_version_begins_anew(tmp_path: Path) -> None:
    begun(tmp_path / "file", 2).keep()
    partial = begun(tmp_path / "file", 0, origin=b"another")
    assert partial.done == 0
    partial.keep()
    partial = begun(tmp_path / "file", 0, data=DATA + b"longer")
    assert partial.done == 0
    partial.drop()


def test_what_the_disk_changed_is_found(tmp_path: Path) -> None:
    partial = begun(tmp_path / "file", 4)
    flip(tmp_path / ".file.stripefs-copy", 2 * STEP + 3 * CHECK + 9)
    with pytest.raises(Spoiled, match=f"from byte {2 * STEP + 3 * CHECK} on"):
        partial.publish(ignore)
    os.truncate(tmp_path / ".file.stripefs-copy", STEP + 10)
    with pytest.raises(Spoiled, match=f"from byte {STEP} on"):
        partial.publish(ignore)
    partial.drop()
    partial = begun(tmp_path / "file", 1, data=DATA[:5])
    flip(tmp_path / ".file.stripefs-copy", 3)
    with pytest.raises(Spoiled, match=f"from byte {0} on"):
        partial.publish(ignore)
    partial.drop()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("steps", [1, 4])
def test_one_that_was_killed_before_it_had_its_name_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    data = DATA[: steps * STEP]
    partial = begun(tmp_path / "file", steps, data=data, looks=FileMetadata(0o444))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_args, **_kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            partial.publish(ignore)
    assert (tmp_path / ".file.stripefs-copy").stat().st_mode & 0o600 == 0o600
    partial.keep()
    partial = begun(tmp_path / "file", steps, data=data, looks=FileMetadata(0o444))
    partial.publish(ignore)
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o444
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_replaced_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectory):
        begun(tmp_path / "folder", 0)
    with pytest.raises(FileNotFoundError):
        begun(tmp_path / "none" / "file", 0)
    with pytest.raises(NoSpace, match="no room"):
        Partial(os.fsencode(tmp_path / "file"), 1 << 60, b"", LOOKS)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    partial = begun(path, 1, data=b"some")
    partial.publish(None)
    assert path.read_bytes() == b"some"
