"""`stripefs cache`, on a real folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.cache.segment_format import DATA_AT
from stripefs.cli import app
from tests.contract.commands import forget_settings, said
from tests.support.caches import MIB, cached, write

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache of /…/run/step-1/a (3 MiB), step-1/b (2 MiB) and step-2/a (2 MiB)."""
    source, folder = tmp_path / "source", tmp_path / "cache"
    for number, (name, size) in enumerate({"step-1/a": 3, "step-1/b": 2, "step-2/a": 2}.items()):
        (source / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        write(source / "run" / name, size * MIB, seed=number)
    with cached(source, folder) as one:
        for name in ("step-1/a", "step-1/b", "step-2/a"):
            one.read(b"/run/" + name.encode())
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    forget_settings(tmp_path, monkeypatch)
    return lambda *words: said(app, capsys, ["cache", words[0], "--cache", str(folder), *words[1:]])


def listed(run: Run, *words: str) -> dict[str, dict[str, object]]:
    code, out, _ = run("ls", "--json", *words)
    assert code == 0
    return {"/".join(str(each["path"]).split("/")[-2:]): each for each in json.loads(out)["versions"]}


def test_ls_shows_what_is_kept(run: Run, folder: Path) -> None:
    found = listed(run)
    assert set(found) == {"step-1/a", "step-1/b", "step-2/a"}
    assert found["step-1/a"]["length"] == 3 * MIB
    assert 3 * MIB <= int(str(found["step-1/a"]["bytes"])) <= 3 * MIB + 8192
    code, out, _ = run("ls")
    assert code == 0
    assert "run/step-1/a" in out
    assert out.rstrip().endswith(f"of 3 versions in {folder}/stripefs-1")


def test_versions_are_named_by_pattern_directory_and_key(run: Run) -> None:
    everything = listed(run)
    assert set(listed(run, "step-1")) == {"step-1/a", "step-1/b"}
    assert set(listed(run, "step-*/a")) == {"step-1/a", "step-2/a"}
    assert set(listed(run, "b", "step-2")) == {"step-1/b", "step-2/a"}
    assert set(listed(run, str(everything["step-1/b"]["key"])[:8])) == {"step-1/b"}
    code, _, err = run("ls", "step-3")
    assert code == 2
    assert "nothing that is kept is called 'step-3'" in err


def test_evict_removes_and_leaves_pins_alone(run: Run) -> None:
    assert run("pin", "step-1/a")[:2] == (0, "1 versions pinned\n")
    assert listed(run)["step-1/a"]["pinned"] is True
    code, out, _ = run("evict", "--json", "step-1")
    assert code == 0
    told = json.loads(out)
    assert [each["path"][-8:] for each in told["removed"]] == ["step-1/b"]
    assert told["freed_bytes"] >= 2 * MIB
    assert set(listed(run)) == {"step-1/a", "step-2/a"}
    assert run("unpin", "step-1/a")[0] == 0
    assert run("evict", "--all")[0] == 0
    assert listed(run) == {}


def test_evict_of_pinned_versions_wants_to_be_told(run: Run) -> None:
    run("pin", "step-1")
    run("evict", "--all")
    assert set(listed(run)) == {"step-1/a", "step-1/b"}
    assert run("evict", "--all", "--pinned")[0] == 0
    assert listed(run) == {}


@pytest.mark.parametrize("words", [(), ("--all", "step-1")])
def test_evict_wants_to_be_told_what(run: Run, words: tuple[str, ...]) -> None:
    code, _, err = run("evict", *words)
    assert code == 2
    assert "say what to remove" in err


def test_verify_finds_what_is_damaged_once(run: Run, folder: Path) -> None:
    assert run("verify")[:2] == (0, "7 blocks, 7 MiB: 0 damaged\n")
    key = str(listed(run)["step-1/b"]["key"])
    (segment,) = (folder / "stripefs-1" / "versions" / key[:2] / key).glob("0*")
    with segment.open("r+b") as file:
        file.seek(DATA_AT + MIB + 5)
        file.write(b"damage")
    code, out, _ = run("verify", "--json")
    assert code == 3
    told = json.loads(out)
    assert (told["blocks"], told["damaged"]) == (7, 1)
    assert [each["key"] for each in told["versions"]] == [key]
    assert run("verify")[:2] == (0, "6 blocks, 6 MiB: 0 damaged\n")


def test_verify_names_what_is_no_segment(run: Run, folder: Path) -> None:
    key = str(listed(run)["step-2/a"]["key"])
    (segment,) = (folder / "stripefs-1" / "versions" / key[:2] / key).glob("0*")
    segment.write_bytes(b"rubbish")
    code, out, err = run("verify")
    assert code == 3
    assert out == "5 blocks, 5 MiB: 0 damaged\n"
    assert str(segment) in err


def test_an_empty_folder_is_no_error_and_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_settings(tmp_path, monkeypatch)
    code, out, _ = said(app, capsys, ["cache", "ls", "--json", "--cache", str(tmp_path / "absent")])
    assert code == 0
    assert json.loads(out)["versions"] == []
    assert not (tmp_path / "absent").exists()
    code, _, err = said(app, capsys, ["cache", "ls"])
    assert code == 2
    assert "no cache folder is named" in err
