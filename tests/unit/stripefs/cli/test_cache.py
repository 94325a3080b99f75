"""`stripefs cache`, on a real folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stripefs.cache.cache_format import DATA_AT
from tests.support.caches import MIB, cached, write
from tests.unit.stripefs.cli.conftest import Run


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
def cache(folder: Path, run: Run) -> Run:
    return lambda *words: run("cache", words[0], "--cache", folder, *words[1:])


def listed(cache: Run, *words: str) -> dict[str, dict[str, object]]:
    code, out, _ = cache("ls", "--json", *words)
    assert code == 0
    return {"/".join(str(each["path"]).split("/")[-2:]): each for each in json.loads(out)["versions"]}


def test_ls_shows_what_is_kept(cache: Run, folder: Path) -> None:
    found = listed(cache)
    assert set(found) == {"step-1/a", "step-1/b", "step-2/a"}
    assert found["step-1/a"]["length"] == 3 * MIB
    assert 3 * MIB <= int(str(found["step-1/a"]["bytes"])) <= 3 * MIB + 8192
    code, out, _ = cache("ls")
    assert code == 0
    assert "run/step-1/a" in out
    assert out.rstrip().endswith(f"of 3 versions in {folder}/stripefs-1")


def test_versions_are_named_by_pattern_directory_and_key(cache: Run) -> None:
    everything = listed(cache)
    assert set(listed(cache, "step-1")) == {"step-1/a", "step-1/b"}
    assert set(listed(cache, "step-*/a")) == {"step-1/a", "step-2/a"}
    assert set(listed(cache, "b", "step-2")) == {"step-1/b", "step-2/a"}
    assert set(listed(cache, str(everything["step-1/b"]["key"])[:8])) == {"step-1/b"}
    code, _, err = cache("ls", "step-3")
    assert code == 2
    assert "nothing that is kept is called 'step-3'" in err


def test_evict_removes_and_leaves_pins_alone_unless_it_is_told(cache: Run) -> None:
    assert cache("pin", "step-1/a")[:2] == (0, "1 versions pinned\n")
    assert listed(cache)["step-1/a"]["pinned"] is True
    code, out, _ = cache("evict", "--json", "step-1")
    assert code == 0
    told = json.loads(out)
    assert [each["path"][-8:] for each in told["removed"]] == ["step-1/b"]
    assert told["freed_bytes"] >= 2 * MIB
    cache("pin", "step-2")
    assert cache("unpin", "step-1/a")[0] == 0
    assert cache("evict", "--all")[0] == 0
    assert set(listed(cache)) == {"step-2/a"}
    assert cache("evict", "--all", "--pinned")[0] == 0
    assert listed(cache) == {}


@pytest.mark.parametrize("words", [(), ("--all", "step-1")])
def test_evict_wants_to_be_told_what(cache: Run, words: tuple[str, ...]) -> None:
    code, _, err = cache("evict", *words)
    assert code == 2
    assert "say what to remove" in err


def test_verify_finds_what_is_damaged_once(cache: Run, folder: Path) -> None:
    assert cache("verify")[:2] == (0, "7 blocks, 7 MiB: 0 damaged\n")
    key = str(listed(cache)["step-1/b"]["key"])
    (segment,) = (folder / "stripefs-1" / "versions" / key[:2] / key).glob("0*")
    with segment.open("r+b") as file:
        file.seek(DATA_AT + MIB + 5)
        file.write(b"damage")
    code, out, _ = cache("verify", "--json")
    assert code == 3
    told = json.loads(out)
    assert (told["blocks"], told["damaged"]) == (7, 1)
    assert [each["key"] for each in told["versions"]] == [key]
    assert cache("verify")[:2] == (0, "6 blocks, 6 MiB: 0 damaged\n")


def test_verify_names_what_is_no_segment(cache: Run, folder: Path) -> None:
    key = str(listed(cache)["step-2/a"]["key"])
    (segment,) = (folder / "stripefs-1" / "versions" / key[:2] / key).glob("0*")
    segment.write_bytes(b"rubbish")
    code, out, err = cache("verify")
    assert code == 3
    assert out == "5 blocks, 5 MiB: 0 damaged\n"
    assert str(segment) in err


def test_an_empty_folder_is_no_error(tmp_path: Path, run: Run) -> None:
    code, out, _ = run("cache", "ls", "--json", "--cache", tmp_path / "absent")
    assert code == 0
    assert json.loads(out)["versions"] == []
    assert not (tmp_path / "absent").exists()
