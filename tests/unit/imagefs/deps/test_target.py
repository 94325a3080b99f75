"""The directory that is installed into: what it is for a key, and what of it may be removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imagefs.daemon import processes
from imagefs.deps import inventory
from imagefs.deps.target import TargetDirectory, TargetRefused, TargetState

KEY, OTHER = "a" * 64, "b" * 64
US = (os.getpid(), processes.began(os.getpid()))
GONE = (US[0], US[1] + 1)


@pytest.fixture
def target(tmp_path: Path) -> TargetDirectory:
    target = TargetDirectory(str(tmp_path / "deps"), str(tmp_path / "cache"))
    with target.locked(lambda: None):
        return target


def begin(target: TargetDirectory, user: tuple[int, int] = GONE) -> Path:
    target.begin(KEY, [user])
    file = Path(target.path, "file")
    file.write_text("x")
    return file


def finish(target: TargetDirectory, user: tuple[int, int] = GONE) -> Path:
    file = begin(target, user)
    target.finish(inventory.take(target.path), KEY)
    return file


def test_one_that_is_not_there(target: TargetDirectory) -> None:
    assert target.state(KEY) is TargetState.EMPTY
    target.begin(KEY, [])
    assert target.state(KEY) is TargetState.EMPTY
    os.rmdir(target.path)
    Path(target.path).touch()
    with pytest.raises(TargetRefused, match="no directory"):
        target.state(KEY)


def test_one_that_is_finished(target: TargetDirectory) -> None:
    file = finish(target)
    assert target.state(KEY) is TargetState.FINISHED
    Path(target.path, "more").touch()
    assert target.state(KEY) is TargetState.FINISHED
    assert target.changes(inventory.take(target.path)) == ["more"]
    file.write_text("y")
    assert target.state(KEY) is TargetState.CHANGED
    assert target.changes(inventory.take(target.path)) == ["file", "more"]
    file.unlink()
    assert target.state(KEY) is TargetState.CHANGED


def test_what_programs_keep_beside_modules(target: TargetDirectory) -> None:
    file = finish(target)
    caches = Path(target.path, "pkg/__pycache__")
    caches.mkdir(parents=True)
    (caches / "a.nbi").touch()
    assert target.caches(inventory.take(target.path)) == {"pkg/__pycache__/a.nbi"}
    assert target.changes(inventory.take(target.path)) == []
    (caches / "a.nbi").unlink()
    file.unlink()
    assert target.changes(inventory.take(target.path)) == ["a file that was removed"]


def test_another_key_may_have_it_when_nobody_uses_it(target: TargetDirectory) -> None:
    finish(target, US)
    assert target.state(OTHER) is TargetState.IN_USE
    assert target.users() == [f"process {US[0]}"]
    finish(target)
    assert target.state(OTHER) is TargetState.OURS
    target.join([US])
    assert target.state(OTHER) is TargetState.IN_USE


def test_who_keeps_a_file_open_uses_it(target: TargetDirectory) -> None:
    """As what a job has left behind does, or one whose process nobody knows."""
    file = finish(target)
    with file.open() as opened, subprocess.Popen(["sleep", "1000"], stdin=opened) as other:
        opened.close()
        try:
            assert target.state(OTHER) is TargetState.IN_USE
            assert target.users() == [f"process {other.pid} (sleep)"]
        finally:
            other.kill()
    assert target.state(OTHER) is TargetState.OURS


def test_what_was_begun_and_never_ended_may_go(target: TargetDirectory) -> None:
    begin(target, US)
    assert target.state(KEY) is TargetState.OURS
    target.clear()
    assert os.listdir(target.path) == []


def test_what_was_handed_over_unfinished_stays(target: TargetDirectory) -> None:
    """Its users have it, though something of ours has failed since."""
    begin(target)
    target.hand_over()
    assert target.state(KEY) is TargetState.UNSURE
    assert target.state(OTHER) is TargetState.FOREIGN


def test_what_was_installed_without_us_stays(target: TargetDirectory) -> None:
    begin(target)
    target.note_plain(OTHER, [US])
    assert target.state(OTHER) is TargetState.UNSURE
    assert target.state(KEY) is TargetState.FOREIGN
    finish(target)
    target.note_plain(KEY, [US])
    assert target.state(KEY) is TargetState.FINISHED


def test_another_directory_in_its_place(target: TargetDirectory) -> None:
    """The new directory mostly gets the same inode number."""
    begin(target)
    shutil.rmtree(target.path)
    os.mkdir(target.path)
    file = Path(target.path, "mine")
    file.touch()
    assert target.state(KEY) is TargetState.FOREIGN
    target.clear()
    assert file.exists()


def test_the_same_directory_after_a_reboot(target: TargetDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices may have other numbers then, as they have with each mount of an overlay."""
    finish(target)
    facts = inventory.FileFacts

    def later(*values: int) -> inventory.FileFacts:
        found = facts(*values)
        return found._replace(device=found.device + 1)

    monkeypatch.setattr(inventory, "FileFacts", later)
    assert target.state(KEY) is TargetState.FINISHED


def test_where_directories_have_no_attributes(target: TargetDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setxattr", _no)
    finish(target)
    assert target.state(KEY) is TargetState.FINISHED
    os.rename(target.path, f"{target.path}-before")
    os.mkdir(target.path)
    Path(target.path, "mine").touch()
    assert target.state(KEY) is TargetState.FOREIGN


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"[" * 100_000, b"\xff", b'{"path": 1, "users": 2}'])
def test_a_mark_that_makes_no_sense(target: TargetDirectory, data: bytes) -> None:
    finish(target)
    (noted,) = Path(target.cache).rglob("*.json")
    noted.write_bytes(data)
    assert target.state(KEY) is TargetState.FOREIGN
    assert target.users() == []
    target.clear()
    assert os.listdir(target.path) == ["file"]


@pytest.mark.parametrize("data", [b"", b"1234567", None])
def test_what_is_known_of_its_files_is_lost(target: TargetDirectory, data: bytes | None) -> None:
    finish(target)
    (files,) = Path(target.cache).rglob("*.files")
    files.unlink()
    if data is not None:
        files.write_bytes(data)
    assert target.state(KEY) is TargetState.UNSURE
    with pytest.raises(TargetRefused, match="such as file"):
        target.clear()


def test_one_that_cannot_be_emptied(target: TargetDirectory) -> None:
    """A part of it may be gone, and is not taken for the whole."""
    finish(target)
    busy = Path(target.path, "sub/mount")
    busy.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rmdir", _no)
        with pytest.raises(TargetRefused, match="cannot be removed"):
            target.clear()
    assert target.state(KEY) is TargetState.OURS
    target.clear()
    assert os.listdir(target.path) == []


def _no(path: str, *rest: object, **more: object) -> None:
    raise PermissionError(1, "no", path)


def test_its_folder_is_its_owners_alone(tmp_path: Path) -> None:
    """Anyone who could write there could have any directory emptied, and read all blocks of the cache."""
    target = TargetDirectory(str(tmp_path / "deps"), str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        with target.locked(lambda: None):
            target.begin(KEY, [])
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_the_turn_is_for_one_at_a_time(target: TargetDirectory) -> None:
    script = (
        "import sys; from imagefs.deps.target import TargetDirectory\n"
        "with TargetDirectory(*sys.argv[1:]).locked(lambda: print('waits', flush=True)): print('has it')"
    )
    with target.locked(lambda: None):
        other = subprocess.Popen(
            [sys.executable, "-c", script, target.path, target.cache], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "waits\n"
    assert other.communicate()[0] == "has it\n"
