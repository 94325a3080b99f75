"""Files written outside the targets, and the capture of an upper directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from imagefs.deps.capture import capture_upper
from imagefs.deps.check.tree import IGNORED, check_outside
from imagefs.deps.inventory import take
from imagefs.errors import SnapshotError
from imagefs.format.inodes import walk

pytestmark = pytest.mark.root


def put(top: Path, *paths: str) -> None:
    for path in paths:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(path)


def white_out(top: Path, path: str) -> None:
    (top / path).parent.mkdir(parents=True, exist_ok=True)
    os.mknod(top / path, stat.S_IFCHR, 0)


def outside(top: Path, *targets: str, more: tuple[str, ...] = (), lower: str = "") -> dict[str, str]:
    return {one.subject: one.what for one in check_outside(take(str(top)), targets, (*IGNORED, *more), lower)}


def captured(top: Path, *targets: str) -> set[str]:
    root, contents = capture_upper(str(top), targets)
    found = {path.decode(): inode for path, inode in walk(root)}
    assert set(contents) == {inode for inode in found.values() if inode.is_file}
    return {path for path, inode in found.items() if not inode.is_directory}


def test_writes_outside_are_told_by_name(tmp_path: Path) -> None:
    put(tmp_path, "opt/deps/a.py", "etc/passwd", "usr/lib/libx.so")
    white_out(tmp_path, "usr/bin/removed")
    assert outside(tmp_path, "/opt/deps") == {
        "/etc/passwd": "written",
        "/usr/lib/libx.so": "written",
        "/usr/bin/removed": "removed",
    }
    assert outside(tmp_path, "/opt/deps", "/usr", more=("/etc/*",)) == {}
    assert outside(tmp_path, "/") == {}


def test_what_programs_leave_does_not_count(tmp_path: Path) -> None:
    put(tmp_path, "tmp/x/y", "var/tmp/x", "run/lock/x", "root/.cache/pip/x", "home/me/.cache/uv/x")
    put(tmp_path, "usr/lib/python3/__pycache__/os.cpython-311.pyc", "etc/resolv.conf")
    assert outside(tmp_path, "/opt/deps") == {}
    assert captured(tmp_path, "/") == {"usr/lib/python3/__pycache__/os.cpython-311.pyc"}


def test_directories(tmp_path: Path) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    put(upper, "opt/deps/a.py")
    put(lower, "srv/same/x", "srv/changed/x", "srv/replaced/x")
    for name in ("same", "changed", "made", "replaced"):
        (upper / "srv" / name).mkdir(parents=True)
    (upper / "srv" / "changed").chmod(0o700)
    os.setxattr(upper / "srv" / "replaced", "trusted.overlay.opaque", b"y")
    assert outside(upper, "/opt/deps") == {"/srv/replaced": "replaced"}
    assert outside(upper, "/opt/deps", lower=str(lower)) == {
        "/srv/changed": "changed",
        "/srv/made": "made",
        "/srv/replaced": "replaced",
    }


def test_targets_alone_are_captured_also_in_places_for_a_while(tmp_path: Path) -> None:
    put(tmp_path, "opt/deps/a.py", "opt/deps/b/c.py", "opt/other", "etc/passwd", "opt/depsonly", "tmp/a", "tmp/other")
    white_out(tmp_path, "opt/deps/gone.py")
    assert captured(tmp_path, "/opt/deps") == {"opt/deps/a.py", "opt/deps/b/c.py", "opt/deps/gone.py"}
    assert captured(tmp_path, "/opt/deps/b/", "/etc") == {"opt/deps/b/c.py", "etc/passwd"}
    assert captured(tmp_path, "/absent") == set()
    assert captured(tmp_path, "/tmp/a") == {"tmp/a"}
    assert captured(tmp_path, "/", "/tmp/a") - captured(tmp_path, "/") == {"tmp/a"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trusted.overlay.redirect", b"/elsewhere"),
        ("trusted.overlay.metacopy", b""),
        ("trusted.overlay.opaque", b"x"),
        ("user.overlay.opaque", b"y"),
    ],
)
def test_what_no_lower_directory_can_say_is_refused(tmp_path: Path, name: str, value: bytes) -> None:
    put(tmp_path, "opt/deps/b/c")
    os.setxattr(tmp_path / "opt" / "deps" / "b", name, value)
    with pytest.raises(SnapshotError, match="opt/deps/b: "):
        capture_upper(str(tmp_path), ["/opt/deps"])


def test_a_directory_above_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """The snapshot would hide what is beside the target."""
    put(tmp_path, "opt/deps/a")
    os.setxattr(tmp_path / "opt", "trusted.overlay.opaque", b"y")
    with pytest.raises(SnapshotError, match="/opt was replaced"):
        capture_upper(str(tmp_path), ["/opt/deps"])
