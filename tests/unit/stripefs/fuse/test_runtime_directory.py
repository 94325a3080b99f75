"""The folder of control sockets is its user's alone, whoever made it and however."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stripefs.errors import MountError
from stripefs.fuse import control
from stripefs.fuse.control import make_directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_all_that_is_made_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert make_directory(tmp_path / "a/b/c") == tmp_path / "a/b/c"
    assert [mode(tmp_path / path) for path in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path) == 0o755


def test_the_default_directories_are_closed_and_others_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its own directories are closed: a checkout named `bootseer` stays as open as its user wants it."""
    for name in ("run", "home"):
        (tmp_path / name / "bootseer/inner").mkdir(parents=True)
        (tmp_path / name / "bootseer").chmod(0o755)
        (tmp_path / name / "bootseer/inner").chmod(0o750)
    default = tmp_path / "run/bootseer"
    monkeypatch.setattr(control, "runtime_directory", lambda: default / "stripefs")
    make_directory(default / "inner")
    assert [mode(default), mode(default / "inner"), mode(default.parent)] == [0o700, 0o700, 0o755]
    with pytest.raises(MountError, match="open to other users") as raised:
        make_directory(tmp_path / "home/bootseer/inner")
    assert "chmod 700" in raised.value.hint
    assert [mode(tmp_path / "home/bootseer"), mode(tmp_path / "home/bootseer/inner")] == [0o755, 0o750]


def test_what_is_no_folder_of_ours(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        with pytest.raises(MountError, match="someone else"):
            make_directory(tmp_path / name)


@pytest.mark.root
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "bootseer").mkdir(mode=0o700)
    os.chown(tmp_path / "bootseer", 1234, -1)
    with pytest.raises(MountError, match="someone else"):
        make_directory(tmp_path / "bootseer")
