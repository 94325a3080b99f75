"""Digests of files and directories: what changes them, and what does not."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefs.deps.digest import Files, digest_of_file, digest_of_tree
from stripefs.errors import ConfigError


def make(folder: Path) -> Path:
    (folder / "src/pkg").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "src/pkg/__init__.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "link").symlink_to("run.sh")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make(tmp_path / "tree")


def test_equal_trees_have_equal_digests_wherever_they_lie(tree: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "elsewhere/other")
    os.utime(other / "run.sh", (0, 0))
    assert digest_of_tree(str(other)) == digest_of_tree(str(tree))


def add(tree: Path, path: str) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).touch()


CHANGES: list[Callable[[Path], object]] = [
    lambda tree: (tree / "pyproject.toml").write_text("[Project]\n"),
    lambda tree: (tree / "pyproject.toml").rename(tree / "pyproject.toml2"),
    lambda tree: (tree / "run.sh").chmod(0o755),
    *(
        functools.partial(add, path=path)
        for path in ("new", "build/other", "build/lib/x.py", "src/pkg.egg-info/PKG-INFO", "git")
    ),
    lambda tree: (tree / "empty").rmdir(),
    lambda tree: (tree / "pipe").unlink(),
    lambda tree: ((tree / "link").unlink(), (tree / "link").symlink_to("./run.sh")),
    lambda tree: ((tree / "link").unlink(), (tree / "link").write_text("run.sh")),
    lambda tree: ((tree / "empty").rmdir(), (tree / "empty").touch()),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_digest_of_a_tree(tree: Path, change: Callable[[Path], object]) -> None:
    before = digest_of_tree(str(tree))
    change(tree)
    assert digest_of_tree(str(tree)) != before


@pytest.mark.parametrize("path", ["src/pkg/__pycache__/a.pyc", "old.pyc", ".git/index", "src/.git", "target/file"])
def test_bytecode_a_target_and_what_version_control_leaves_do_not_count(tree: Path, path: str) -> None:
    before = digest_of_tree(str(tree))
    add(tree, path)
    assert digest_of_tree(str(tree), [str(tree / "target")]) == before


def test_a_file_outside_that_a_link_leads_to_counts(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("one")
    (tree / "own").symlink_to(tmp_path / "shared")
    before = digest_of_tree(str(tree))
    (tmp_path / "shared").write_text("two")
    assert digest_of_tree(str(tree)) != before


def test_a_link_to_a_directory_outside_is_refused(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tree / "own").symlink_to(tmp_path / "shared")
    with pytest.raises(ConfigError, match="leads to a directory outside"):
        digest_of_tree(str(tree))


def test_files_have_names_of_their_own(tree: Path, tmp_path: Path) -> None:
    files = Files([])
    assert files.text(str(tree / "pyproject.toml"), "a.txt") == ("a.txt", b"[project]\n")
    assert files.add(str(tree / "run.sh"), "a.txt") == "a.txt#2"
    assert files.add(str(tree / "run.sh"), "b.txt") == "a.txt#2"
    assert files.add(str(tree), "tree") == "tree/"
    assert list(files.digests) == ["a.txt", "a.txt#2", "tree/"]
    assert files.name_of(str(tree)) == "tree/"
    assert files.name_of(str(tmp_path)) == ""


def test_passwords_in_a_list_do_not_count(tmp_path: Path) -> None:
    digests = []
    for number, text in enumerate(
        (b"-i https://a:b@host/\xff\n", b"-i https://c@host/\xff\n", b"-i https://a:b@hose/\xff\n")
    ):
        path = tmp_path / str(number)
        path.write_bytes(text)
        files = Files([])
        assert files.text(str(path), "list")[1] == text
        digests.append(files.digests["list"])
    assert digests[0] == digests[1] != digests[2]


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for read in (digest_of_file, digest_of_tree, lambda path: Files([]).text(path, "x")):
        with pytest.raises(ConfigError, match="missing cannot be read"):
            read(missing)
