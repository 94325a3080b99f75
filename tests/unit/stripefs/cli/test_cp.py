"""`stripefs cp` from its arguments to what lies where, between local directories as stores and as what they are."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import stripefs
from tests.support.checkout import CHECKOUT
from tests.support.python_api import LAYOUTS, names, spread
from tests.unit.stripefs.cli.copying import DATA, Run, cp, files, source, store, told

__all__ = ["cp", "source", "store"]


# -- destinations


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_a_store_and_back(cp: Run, source: Path, store: Path, tmp_path: Path, layout: str) -> None:
    url = spread(store)
    code, out, err = cp("-r", "--layout", layout, "--unit", "1MiB", source, url)
    assert (code, err) == (0, "")
    assert out.startswith("3 of 3 files copied, 20.0 MiB at ")
    assert out.endswith(", compared with what is stored\n")
    fs = stripefs.connect(url)
    assert fs.read_bytes("source/model") == DATA
    assert fs.listdir("source/deep") == ["config", "empty", "zero"]
    assert ((store / "source/model").stat().st_size < 65536) == (layout == "striped")
    assert told(cp, "-r", store / "source", tmp_path / "back") == {
        "files": 3, "copied": 3, "copied_bytes": len(DATA) + 2, "resumed_bytes": 0, "skipped": 0,
    }  # fmt: skip
    assert files(tmp_path / "back") == files(source)
    assert (tmp_path / "back" / "deep" / "empty").is_dir()


def test_from_store_to_store(cp: Run, source: Path, store: Path) -> None:
    (store / "one").mkdir()
    (store / "two").mkdir()
    assert cp("--root", f"file://{store}/one", "--layout", "striped", source / "model", f"{store}/one/")[0] == 0
    assert (store / "one" / ".stripefs").is_dir()
    assert cp(f"file://{store}/one/model", f"file://{store}/two/new")[0] == 0
    assert files(store / "two") == {"new": DATA}


def test_cp_says_where_parts_would_lie(cp: Run, source: Path, store: Path) -> None:
    code, out, err = cp("--layout", "striped", source / "model", f"file://{store}/")
    assert code == 3
    assert "no directory above this one has a pool of parts; give the directory that is mounted" in err
    assert "--root" in err
    code, out, err = cp("--layout", "striped", source / "model", store)
    assert (code, out) == (2, "")
    assert f"name it as a store: file://{store}" in err


def test_names(cp: Run, source: Path, store: Path) -> None:
    assert cp(source / "model", store)[0] == 0
    assert cp(source / "model", store / "other")[0] == 0
    assert cp(source / "deep" / "config", source / "deep" / "zero", f"{store}/new/deep/")[0] == 0
    assert cp("-r", source / "deep", store)[0] == 0
    assert cp("-r", f"{source}/deep/.", f"{store}/new")[0] == 0
    assert cp("-rT", source / "deep", store / "new" / "deep")[0] == 0
    assert cp("-r", source / "deep", f"{store}/whole/")[0] == 0
    assert set(files(store)) == {
        "model", "other", "deep/config", "deep/zero", "whole/config", "whole/zero",
        "new/config", "new/zero", "new/deep/config", "new/deep/zero",
    }  # fmt: skip


def test_a_link_is_what_it_leads_to(cp: Run, source: Path, store: Path, tmp_path: Path) -> None:
    (source / "link").symlink_to("model")
    (source / "folder").symlink_to("deep")
    (source / "deep" / "up").symlink_to("..")
    (source / "lost").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    code, _, err = cp("-r", source, store / "copy")
    assert code == 3
    said = sorted(line.removeprefix(f"stripefs: {source}/") for line in err.splitlines())
    assert said == [
        "deep/up: it is a link to a directory that it lies in",
        "deep/up: it is a link to a directory that it lies in",
        "lost: it is a link that leads nowhere",
        "pipe: it is no regular file",
    ]
    found = files(store / "copy")
    assert (found["link"], found["model"], found["folder/config"]) == (DATA, DATA, b"{}")
    (tmp_path / "name").symlink_to(store / "copy")
    assert cp(source / "deep" / "config", tmp_path / "name")[0] == 0
    assert (store / "copy" / "config").read_bytes() == b"{}"
    (tmp_path / "file").symlink_to(store / "copy" / "config")
    assert cp(source / "model", tmp_path / "file")[0] == 0
    assert (store / "copy" / "config").read_bytes() == DATA


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{source}/model"], 2, "where to"),
        (["{source}/none", "{store}"], 3, "{source}/none: No such file or directory"),
        (["{source}/deep", "{store}"], 3, "is a directory; -r copies directories"),
        (["{source}/model", "{source}"], 3, "onto itself"),
        (["{source}/model", "file://{source}/model"], 3, "onto itself"),
        (["-r", "{source}", "{source}/deep/new"], 3, "into itself"),
        (["{source}/model", "{source}/deep/config", "{store}/file"], 2, "to have it made"),
        (
            ["{source}/model", "{store}/none/file"],
            3,
            "cannot copy {source}/model to {store}/none/file: {store}/none: No such",
        ),
        (["{source}/model", "/dev/null"], 2, "stripefs cat"),
        (["{source}/model", "hdfs+x://y"], 2, "unknown"),
    ],
)
def test_misuse_is_one_line(cp: Run, source: Path, store: Path, words: list[str], code: int, said: str) -> None:
    found, _, err = cp(*(word.format(source=source, store=store) for word in words))
    assert (found, err.count("\n")) == (code, 1)
    assert said.format(source=source, store=store) in err
    assert names(store) == set()


# -- attributes of a copy


def test_modes_and_times(cp: Run, source: Path, store: Path) -> None:
    os.chmod(source / "model", 0o755)
    os.utime(source / "model", ns=(5, 1_500_000_000_123_456_789))
    os.chmod(source / "deep", 0o711)
    os.utime(source / "deep", ns=(5, 1_400_000_000_000_000_000))
    (store / "there").mkdir()
    (store / "there" / "model").touch(mode=0o604)
    before = os.umask(0o027)
    try:
        for url in (str(store / "local"), f"file://{store}/stored"):
            assert cp("-r", source, url)[0] == 0
        assert cp(source / "model", store / "there")[0] == 0
        for url in (str(store / "local-p"), f"file://{store}/stored-p"):
            assert cp("-rp", source, url)[0] == 0
    finally:
        os.umask(before)

    def mode(name: str) -> int:
        return (store / name).stat().st_mode & 0o7777

    assert [mode(f"{name}/model") for name in ("local", "stored", "there", "local-p", "stored-p")] == [
        0o750, 0o750, 0o604, 0o755, 0o755,
    ]  # fmt: skip
    assert [mode(f"{name}/deep") for name in ("local", "stored", "local-p", "stored-p")] == [
        0o710, 0o710, 0o711, 0o711,
    ]  # fmt: skip
    for name in ("local-p", "stored-p"):
        assert (store / name / "model").stat().st_mtime_ns == 1_500_000_000_123_456_789
        assert (store / name / "deep").stat().st_mtime_ns == 1_400_000_000_000_000_000
    assert (store / "local" / "model").stat().st_mtime_ns > 1_600_000_000_000_000_000


# -- messages


def test_progress_shows_on_a_terminal_only(cp: Run, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cp(source / "model", store)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = cp(source / "model", store)
    assert code == 0
    assert err.startswith("\r")
    assert " of 20.0 MiB at " in err
    assert err.endswith("\r\x1b[K")


def test_json_has_the_keys_that_the_document_names(cp: Run, source: Path, store: Path) -> None:
    found = json.loads(cp("--json", source / "model", source / "none", store)[1])
    text = (CHECKOUT / "docs" / "json.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `cp` |") and "skipped_bytes" in line)
    for key in [*found, *found["trouble"][0]]:
        assert f"`{key}`" in row
    assert [(each["path"], each["error"], each["kept"]) for each in found["trouble"]] == [
        (f"{source}/none", "No such file or directory", "")
    ]


def test_a_copy_of_nothing_says_what_is_left_out(cp: Run, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".model.stripefs-lock").write_bytes(b"x")
    code, out, err = cp("-r", tmp_path / "hidden", tmp_path / "copy")
    assert (code, err) == (0, "")
    assert out == (
        "nothing was copied: there are no files, apart from names that stripefs keeps for itself (.stripefs, …)\n"
    )
