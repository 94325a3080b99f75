"""A file that is written is there whole, or as it was before."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stripefs.osutil import atomic_file, check, flocked, remove_tree, try_flock, write_output


def write(path: Path, *parts: Any) -> None:
    with atomic_file(path) as file:
        for part in parts:
            file.write(part)


def test_it_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_file(path, ".draft-") as file:
        file.write(b"new")
        assert path.read_text() == "old"
        assert [name[:7] for name in os.listdir(tmp_path) if name != "file"] == [".draft-"]
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write(tmp_path / "file", b"half", "no bytes")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "folder", b"whole")
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "nowhere/file", b"whole")
    assert os.listdir(tmp_path) == ["folder"]


def test_an_output_replaces_files_and_nothing_else(tmp_path: Path) -> None:
    """A link goes on to lead to its file, a pipe stays one, and a file that is not written whole stays as it was."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link", "pipe", "new"):
        write_output(tmp_path / name, ["ne", "w"])
    assert os.read(reader, 100) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "link").is_symlink()

    def broken() -> Iterator[str]:
        yield "half"
        raise KeyError

    with pytest.raises(KeyError):
        write_output(tmp_path / "file", broken())
    with pytest.raises(IsADirectoryError):
        write_output(tmp_path, ["text"])
    assert {name: (tmp_path / name).read_text() for name in ("file", "new")} == {"file": "new", "new": "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "new", "pipe"]


def test_a_tree_is_removed_and_what_its_links_lead_to_is_not(tmp_path: Path) -> None:
    kept, tree = tmp_path / "kept", tmp_path / "tree"
    (kept / "inner").mkdir(parents=True)
    (kept / "file").write_text("kept")
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/file").write_text("gone")
    (tree / "a/fifo.d").mkdir(mode=0o000)
    os.mkfifo(tree / "a/b/fifo")
    (tree / "a/to_directory").symlink_to(kept)
    (tree / "a/b/to_file").symlink_to(kept / "file")
    (tree / "to_nothing").symlink_to("nowhere")
    remove_tree(tree)
    assert not tree.exists()
    (tmp_path / "link").symlink_to(kept)
    for name, error in (("link", NotADirectoryError), ("missing", FileNotFoundError)):
        with pytest.raises(error):
            remove_tree(tmp_path / name)
    assert sorted(path.name for path in kept.iterdir()) == ["file", "inner"]


def test_a_lock_is_held_until_the_end_of_its_block(tmp_path: Path) -> None:
    with flocked(tmp_path / "lock") as held:
        assert os.fstat(held).st_mode & 0o777 == 0o600
        other = os.open(tmp_path / "lock", os.O_RDONLY)
        assert not try_flock(other)
        assert not try_flock(other, 0.1)
        with pytest.raises(BlockingIOError), flocked(tmp_path / "lock", wait=False):
            pass
    assert try_flock(other)
    os.close(other)
    with flocked(tmp_path, os.O_RDONLY | os.O_DIRECTORY, wait=False):
        pass


def test_results_below_zero_are_errors() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert check(libc.getpid()) == os.getpid()
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        check(libc.close(-1), "it")
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, "it")
