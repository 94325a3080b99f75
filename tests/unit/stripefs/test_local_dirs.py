"""Directories that may hold files on local disk. The mount table is a fake; a real mount is tried in tests/mount."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs import osutil
from stripefs.errors import ConfigError
from stripefs.osutil import open_local_dir, resolve_local_dir, user_runtime


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The mount table, to be added to."""
    mounts = {"/": "ext4"}
    monkeypatch.setattr(osutil, "_mounts", lambda: mounts)
    return mounts


def test_a_local_directory_will_do(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    descriptor = open_local_dir("--staging", str(tmp_path / "link" / ".." / "link"), str(tmp_path / "mnt"))
    assert os.path.samestat(os.fstat(descriptor), os.stat(tmp_path / "real"))
    os.close(descriptor)
    resolve_local_dir(
        "--cache", str(tmp_path / "real"), str(tmp_path / "real" / "mnt")
    )  # above a mountpoint is not on it


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("absent", "file", "file/below", "loop"):
        with pytest.raises(ConfigError, match="--staging"):
            os.close(open_local_dir("--staging", str(tmp_path / name), "/mnt"))


def test_the_mountpoint_and_below_are_refused(tmp_path: Path) -> None:
    below = tmp_path / "mnt" / "below"
    below.mkdir(parents=True)
    (tmp_path / "link").symlink_to("mnt/below")
    (tmp_path / "above").symlink_to(".")
    for staging in (tmp_path / "mnt", below, tmp_path / "link"):
        for mountpoint in (tmp_path / "mnt", tmp_path / "above" / "mnt"):
            with pytest.raises(ConfigError, match="on the mount itself"):
                resolve_local_dir("--cache", str(staging), str(mountpoint))


@pytest.mark.parametrize("kind", ["fuse.stripefs", "fuse.imagefs"])
def test_mounts_of_ours_are_refused_unasked(tmp_path: Path, table: dict[str, str], kind: str) -> None:
    """Nothing there is looked at: below the pretended mount nothing exists, and it is refused all the same."""
    table[str(tmp_path / "live")] = kind
    (tmp_path / "link").symlink_to(tmp_path / "live" / "dir")
    for staging in ("live", "live/dir", "link", "link/further"):
        with pytest.raises(ConfigError, match=f"on a mount of {kind.removeprefix('fuse.')}"):
            resolve_local_dir("--cache", str(tmp_path / staging), "/mnt")


def test_what_is_not_there_yet_can_be_told_apart_too(tmp_path: Path, table: dict[str, str]) -> None:
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").mkdir()
    wanted = str(tmp_path / "real" / "new" / "newer")
    assert resolve_local_dir("--cache", str(tmp_path / "link" / "new" / "newer"), "/mnt") == wanted
    with pytest.raises(ConfigError, match="on the mount itself"):
        resolve_local_dir("--cache", str(tmp_path / "link" / "new"), str(tmp_path / "real"))
    table[str(tmp_path / "real")] = "fuse.stripefs"
    with pytest.raises(ConfigError, match="on a mount of stripefs"):
        resolve_local_dir("--cache", str(tmp_path / "link" / "new"), "/mnt")


def test_the_runtime_folder_of_a_user_counts_in_a_user_namespace_too() -> None:
    told = "import os; from stripefs.fuse.control import runtime_directory; print(runtime_directory())"
    environ = {**os.environ, "XDG_RUNTIME_DIR": "/run/user/1000"}

    def shown(*wrapper: str, **changed: str) -> str:
        command = [*wrapper, sys.executable, "-c", told]
        return subprocess.run(command, env=environ | changed, check=True, capture_output=True, text=True).stdout.strip()

    assert shown("unshare", "--user", "--map-root-user") == "/run/user/1000/bootseer/stripefs"
    assert shown("unshare", "--user", "--map-root-user", XDG_RUNTIME_DIR="") == "/run/bootseer/stripefs"
    assert user_runtime({"XDG_RUNTIME_DIR": "/x"}, 1000) == "/x"
    assert user_runtime({}, 1000) is None
