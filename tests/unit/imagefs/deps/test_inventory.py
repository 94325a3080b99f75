"""Changes of a tree since its inventory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from imagefs.deps.inventory import changes, take
from imagefs.errors import SnapshotError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        (tmp_path / "tree" / name).write_text("one")
    (tmp_path / "tree" / "link").symlink_to("a")
    time.sleep(0.02)  # older kernels note times in ticks of up to 10 ms
    return tmp_path / "tree"


def _rewrite(tree: Path) -> None:
    """Same size and time, as a tool might that wants not to be noticed."""
    found = (tree / "a").stat()
    (tree / "a").write_text("two")
    os.utime(tree / "a", ns=(found.st_atime_ns, found.st_mtime_ns))


def _replace(tree: Path) -> None:
    (tree / "new").write_text("two")
    os.replace(tree / "new", tree / "a")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (_rewrite, "a"),
        (_replace, "a"),
        (lambda tree: (tree / "a").chmod(0o600), "a"),
        (lambda tree: (tree / "a").unlink(), "a"),
        (lambda tree: (tree / "sub" / "new").touch(), "sub/new"),
        (lambda tree: (tree / "link").unlink() or (tree / "link").symlink_to("b"), "link"),
        (lambda tree: os.utime(tree / "sub" / "b"), "sub/b"),
    ],
)
def test_what_happened_is_seen(tree: Path, change, path: str) -> None:  # type: ignore[no-untyped-def]
    before = take(str(tree))
    change(tree)
    assert path in changes(before, take(str(tree)))


def test_reads_and_further_names_of_a_file_are_no_change(tree: Path, tmp_path: Path) -> None:
    """uv makes hardlinks of what it has in its cache, for others too."""
    os.link(tree / "a", tmp_path / "in-cache")
    before = take(str(tree))
    (tree / "a").read_bytes()
    assert changes(before, take(str(tree))) == []
    os.link(tree / "a", tmp_path / "for-another")
    assert changes(before, take(str(tree))) == []
    (tree / "a").write_text("longer")
    assert changes(before, take(str(tree))) == ["a"]


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="absent"):
        take(str(tmp_path / "absent"))
