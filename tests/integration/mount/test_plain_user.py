"""A plain user: nobody's own mounts through fusermount3, in a mount namespace whose /dev/fuse everyone may open.

Run by root, because only root can become someone else.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stripefs.errors import MountError
from stripefs.settings import WriteSettings
from tests.contract.commands import program
from tests.support.mount_namespace import unshared
from tests.support.other_users import AS_NOBODY, NOBODY, let_others_mount
from tests.tools.mounts import MIB, PATIENCE, Mounted, Mounts, sha256

pytestmark = [pytest.mark.mount, pytest.mark.root]

_WRITE = WriteSettings()


@pytest.fixture
def mounts(open_path: Path) -> Iterator[Mounts]:
    """Mounts in a folder that everyone may read."""
    with contextlib.closing(Mounts(open_path)) as made:
        yield made


def _start(
    mounts: Mounts,
    prepare: str = "true",
    write: WriteSettings = _WRITE,
    **options: object,
) -> Mounted:
    runtime = mounts.folder / "runtime"
    runtime.mkdir()
    settings = mounts.prepare(**options)._replace(write=write)  # type: ignore[arg-type]  # passed on as they come
    for path in (settings.mount.mountpoint, runtime):
        os.chown(path, NOBODY, NOBODY)
    as_nobody = (*AS_NOBODY, "env", f"XDG_RUNTIME_DIR={runtime}")
    prepare = f"{let_others_mount(mounts.folder)} && {prepare}"
    return mounts.start(settings, unshared(mounts.folder, *as_nobody, prepare=prepare))


def _inside(mounted: Mounted, *command: str) -> subprocess.CompletedProcess[str]:
    """Run as nobody where the mount is to be seen."""
    runtime = f"XDG_RUNTIME_DIR={mounted.path.parent / 'runtime'}"
    wrapper = ["nsenter", "-t", str(mounted.process.pid), "-m", *AS_NOBODY, "env", runtime]
    return subprocess.run([*wrapper, *command], capture_output=True, text=True, timeout=PATIENCE)


def _status(mounted: Mounted) -> dict[str, Any]:
    done = _inside(mounted, str(program("stripefs")), "status", "--json", str(mounted.path))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)[0])


def test_reads_and_survives_a_killed_worker(mounts: Mounts) -> None:
    mounts.forgive("the next one takes over")
    (mounts.source / "data").write_bytes(os.urandom(8 * MIB))
    mounted = _start(mounts, "mount -t fusectl none /sys/fs/fuse/connections").wait_ready()
    want = sha256(mounts.source / "data")
    assert want in _inside(mounted, "sha256sum", str(mounted.path / "data")).stdout
    status = _status(mounted)
    assert status["privileged"] is False
    limits = status["kernel"]
    assert "Permission denied" in limits["read_ahead_kb"]["limit"]
    assert limits["max_background"]["now"] == 256
    mounted.kill_worker()
    assert want in _inside(mounted, "sha256sum", str(mounted.path / "data")).stdout
    assert _status(mounted)["generation"] == 2
    assert mounted.stop() == 0


@pytest.mark.parametrize(
    ("prepare", "hint"),
    [
        ("mount --bind /dev/null /etc/fuse.conf", "/etc/fuse.conf"),  # which allow_other needs
        ("mount --bind /dev/null $(command -v fusermount3)", "fuse3"),
        ("chown root {mountpoint}", "own the mountpoint"),
        ("chmod 600 /dev/fuse", "/dev/fuse"),
    ],
    ids=["allow_other", "no fusermount3", "somebody else's mountpoint", "a closed device"],
)
def test_what_keeps_a_user_from_mounting_is_said(mounts: Mounts, prepare: str, hint: str) -> None:
    prepare = prepare.format(mountpoint=mounts.folder / "mnt0")
    mounted = _start(mounts, prepare, allow_other=hint == "/etc/fuse.conf")
    with pytest.raises(MountError) as caught:
        mounted.wait_ready()
    assert mounted.process.wait(PATIENCE) == 32
    assert hint in caught.value.hint


def test_roots_mount_for_all_keeps_what_modes_say(mounts: Mounts) -> None:
    for name, mode in (("secret", 0o600), ("open", 0o644)):
        (mounts.source / name).write_text(name)
        (mounts.source / name).chmod(mode)
    mounted = mounts.mount(allow_other=True)
    command = ["cat", str(mounted.path / "open"), str(mounted.path / "secret")]
    done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True)
    assert done.stdout == "open"
    assert done.stderr.endswith("secret: Permission denied\n")


def test_a_mount_of_the_user_alone(mounts: Mounts) -> None:
    """Without allow_other not even root looks in; fusermount3 takes it away."""
    (mounts.source / "file").touch()
    mounted = _start(mounts).wait_ready()
    assert _inside(mounted, "ls", str(mounted.path)).stdout == "file\n"
    as_root = subprocess.run(
        ["nsenter", "-t", str(mounted.process.pid), "-m", "ls", str(mounted.path)], capture_output=True
    )
    assert as_root.returncode != 0
    assert Path(mounted.path).is_dir()
    assert _inside(mounted, "fusermount3", "-u", str(mounted.path)).returncode == 0
    assert mounted.process.wait(PATIENCE) == 0


_SAVES = """
import errno, os, sys
os.chdir(sys.argv[1])
os.mkdir("run")
file = os.open("run/tmp", os.O_WRONLY | os.O_CREAT, 0o640)
for _ in range(10):
    os.write(file, b"x" * (1 << 20))
for owner, group in ((0, -1), (-1, 0)):
    try:
        os.fchown(file, owner, group)
    except OSError as error:
        print(errno.errorcode[error.errno])
os.fchown(file, os.getuid(), os.getgid())
os.fchmod(file, 0o600)
os.write(file, b"end")
os.close(file)
os.rename("run/tmp", "run/model")
print(os.stat("run/model").st_uid, oct(os.stat("run/model").st_mode), os.stat("run/model").st_size)
os.mkdir("empty")
os.rmdir("empty")
try:
    open("roots/new", "w")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("layout", ["concat", "striped", "plain"])
def test_saves(mounts: Mounts, layout: str) -> None:
    """Saved files are theirs; a call that only root may make is refused at once."""
    os.chown(mounts.source, NOBODY, NOBODY)
    (mounts.source / "roots").mkdir()
    mounts.forgive("big files are written as")
    mounted = _start(mounts, rw=True, write=WriteSettings(layout=layout)).wait_ready()
    done = _inside(mounted, sys.executable, "-c", _SAVES, str(mounted.path))
    assert done.stdout.split("\n") == ["EPERM", "EPERM", f"{NOBODY} 0o100600 {10 * MIB + 3}", "EACCES", ""], done.stderr
    assert mounted.stop() == 0
    assert {path.owner() for path in mounts.source.rglob("*")} == {"nobody", "root"}
    assert sorted(os.listdir(mounts.source / "run")) == ["model"]
