"""The journal of a copy that was broken off."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from stripefs.api import FileSystem
from stripefs.copy.journal import CopyJournal, JournalEntry
from stripefs.copy.tree import Place

LINE = JournalEntry("5:17:9", "5:18:1:2", compared=True, preserved=False)


def local(path: Path) -> Place:
    return Place(*FileSystem.of_service(str(path)), local=True)


def stored(path: Path) -> Place:
    return Place(*FileSystem.of_service(f"file://{path}"))


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.fixture
def made(tmp_path: Path, target: Path, environ: Mapping[str, str]) -> Callable[[], CopyJournal]:
    return partial(CopyJournal, [local(tmp_path)], local(target), environ, exact=False)


@pytest.mark.parametrize("place", [local, stored])
def test_it_is_found_by_the_same_command(
    tmp_path: Path, target: Path, environ: Mapping[str, str], place: Callable[[Path], Place]
) -> None:
    sources = [local(tmp_path / "a"), local(tmp_path / "b")]
    journal = CopyJournal(sources, place(target), environ, exact=False)
    assert (journal.begun, journal.whole, journal.before) == (False, False, {})
    journal.whole = True
    journal.begin()
    journal.note("/t/b\udcff", LINE)
    journal.end(all_done=False)
    again = CopyJournal(sources, place(target), environ, exact=False)
    assert (again.begun, again.whole, again.before) == (True, True, {"/t/b\udcff": LINE})
    for others, exact in ((sources[:1], False), (sources[::-1], False), (sources, True)):
        assert not CopyJournal(others, place(target), environ, exact=exact).begun
    again.begin()
    again.note("/t/c", LINE)
    again.end(all_done=False)
    last = CopyJournal(sources, place(target), environ, exact=False)
    assert last.before.keys() == {"/t/b\udcff", "/t/c"}
    last.begin()
    beside = CopyJournal(sources, place(target), environ, exact=False)
    beside.begin()
    last.end(all_done=True)
    beside.end(all_done=True)
    assert not CopyJournal(sources, place(target), environ, exact=False).begun
    assert os.listdir(target) == []


def test_torn_lines_say_nothing(made: Callable[[], CopyJournal]) -> None:
    journal = made()
    journal.begin()
    journal.note("/t/a", LINE)
    journal.note("/t/b", LINE)
    journal.end(all_done=False)
    with open(journal.path, "r+b") as file:
        file.truncate(os.path.getsize(journal.path) - 9)
    again = made()
    assert again.before.keys() == {"/t/a"}
    again.begin()
    again.note("/t/c", LINE)
    again.end(all_done=False)
    assert made().before.keys() == {"/t/a", "/t/c"}


@pytest.mark.parametrize("text", [b"", b"\n\n", b"[]\n", b"\xff\xfe\x00", b'{"format": 1}\n{"path": "/t/a"}\n'])
def test_what_is_none_is_begun_anew(made: Callable[[], CopyJournal], text: bytes) -> None:
    journal = made()
    Path(os.fsdecode(journal.path)).write_bytes(text)
    again = made()
    assert (again.begun, again.before) == (False, {})
    again.begin()
    again.end(all_done=False)
    assert made().begun


def test_old_ones_go(tmp_path: Path, target: Path, environ: Mapping[str, str]) -> None:
    old = CopyJournal([local(tmp_path / "old")], stored(target), environ, exact=False)
    old.begin()
    old.end(all_done=False)
    os.utime(old.path, (0, 0))
    new = CopyJournal([local(tmp_path / "new")], stored(target), environ, exact=False)
    new.begin()
    new.end(all_done=False)
    assert os.listdir(tmp_path / "home/.cache/bootseer/copies") == [os.path.basename(new.path).decode()]
