"""The tree plane on the real kernel: the tree that the kernel's EROFS shows, whatever happens to who serves it."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from imagefs import mounts
from imagefs.daemon.protocol import Attached, AttachedDevice
from imagefs.plane import erofs
from imagefs.settings import DaemonSettings
from stripefs.fuse import kernel
from stripefs.fuse.control import find_mounts, log_file, query
from tests.support.images import nasty, small_image
from tests.support.images.small_image import SmallImage
from tests.support.other_users import AS_NOBODY
from tests.tools.mounts import eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

ACL = bytes.fromhex("02000000 01000600ffffffff 02000400e8030000 04000000ffffffff 10000400ffffffff 20000000ffffffff")
"""rw for the owner, r for user 1000, nothing for anybody else."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    root.mkdir()
    nasty.make(root)
    root.chmod(0o755)
    (root / "private").write_text("for user 1000 too")
    (root / "private").chmod(0o640)
    os.setxattr(root / "private", "system.posix_acl_access", ACL)
    return root


@pytest.fixture(scope="module")
def image(source: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallImage:
    return small_image.make(source, tmp_path_factory.mktemp("image"))


class TreeMount:
    """One mount at `folder`/tree, there once this is made. Raises what kept it from coming up."""

    def __init__(self, metadata: str, devices: Sequence[str], folder: Path, io_timeout: float = 30) -> None:
        self.path = folder / "tree"
        self.path.mkdir()
        settings = DaemonSettings(runtime=str(folder / "run"), io_timeout=io_timeout)
        served = tuple(AttachedDevice("", device, local=True) for device in devices)
        attached = Attached("1", "", metadata, served, None, {}, offline=False, base="", upper="")
        mounts.show_tree(attached, str(self.path), settings, "store#tag")
        self._files = folder / "run/imagefs/trees"
        [mount] = find_mounts(self._files)
        self._supervisor = mount.supervisor_pid

    def status(self) -> dict[str, Any]:
        return query(str(self.path), "status", 30, directory=self._files)

    def kill_worker(self) -> None:
        os.kill(self.status()["worker_pid"], signal.SIGKILL)

    def log(self) -> str:
        return log_file(str(self.path), self._files).read_text()

    def close(self) -> None:
        while kernel.find_mount(str(self.path)) is not None:
            kernel.unmount(str(self.path), kernel.MNT_DETACH)
        eventually(self._has_ended, "the end of the supervisor")

    def _has_ended(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return os.waitpid(self._supervisor, os.WNOHANG)[0] != 0
        return True


Mount = Callable[..., TreeMount]


@pytest.fixture
def mount(open_path: Path) -> Iterator[Mount]:
    """Mounts an image, in one place, and takes the mount away."""
    made: list[TreeMount] = []

    def one(metadata: str, devices: Sequence[str], **options: Any) -> TreeMount:
        made.append(TreeMount(metadata, devices, open_path, **options))
        return made[0]

    yield one
    for tree in made:
        tree.close()


@pytest.fixture
def tree(image: SmallImage, mount: Mount) -> TreeMount:
    return mount(image.metadata, [image.device])


@pytest.fixture
def twin(image: SmallImage, open_path: Path) -> Iterator[Path]:
    """The same image, mounted as EROFS."""
    path = open_path / "erofs"
    path.mkdir()
    erofs.mount(image.metadata, [image.device], str(path))
    yield path
    kernel.unmount(str(path), kernel.MNT_DETACH)


def test_it_is_the_tree_that_the_image_was_made_of(tree: TreeMount, source: Path, twin: Path) -> None:
    assert nasty.facts(tree.path) == nasty.facts(source)
    assert os.stat(tree.path / "sparse").st_blocks == os.stat(twin / "sparse").st_blocks
    ours, theirs = os.statvfs(tree.path), os.statvfs(twin)
    assert [ours.f_bsize, ours.f_blocks, ours.f_bavail, ours.f_namemax] == [4096, theirs.f_blocks, 0, 255]
    assert "WARNING" not in tree.log()


@pytest.mark.parametrize("plane", ["tree", "erofs"])
def test_other_users_may_what_the_image_says(tree: TreeMount, twin: Path, plane: str) -> None:
    file = (tree.path if plane == "tree" else twin) / "private"

    def cat(user: int) -> str:
        done = subprocess.run(["cat", file], user=user, group=user, extra_groups=[], capture_output=True, text=True)
        return done.stdout or done.stderr.rpartition(": ")[2].strip()

    assert [cat(0), cat(1000), cat(1001)] == ["for user 1000 too", "for user 1000 too", "Permission denied"]
    program = f"import os; print(os.listxattr({os.fspath(file.parent / 'files/65536')!r}))"
    done = subprocess.run([*AS_NOBODY, sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['security.capability']"


def test_nothing_can_be_changed(tree: TreeMount) -> None:
    file, folder = tree.path / "files/100", tree.path / "empty"
    attempts: list[Callable[[], object]] = [
        lambda: open(file, "r+b").close(),
        lambda: (folder / "new").write_bytes(b""),
        lambda: file.chmod(0o600),
        file.unlink,
        lambda: file.rename(tree.path / "other"),
        lambda: os.setxattr(file, "user.x", b""),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="Read-only file system"):
            attempt()
    assert not os.access(file, os.W_OK)
    assert "WARNING" not in tree.log()


def test_device_nodes_are_devices(tree: TreeMount) -> None:
    assert (tree.path / "null").read_bytes() == b""
    (tree.path / "null").write_bytes(b"gone")
    assert stat.S_ISFIFO(os.lstat(tree.path / "fifo").st_mode)
    with pytest.raises(OSError, match="File name too long"):
        os.lstat(tree.path / ("n" * 256))


def test_killed_workers_are_not_noticed(tree: TreeMount, source: Path) -> None:
    """In the middle of files and directories."""
    with open(tree.path / "zeros", "rb", buffering=0) as file, os.scandir(tree.path / "many") as entries:
        half = file.read(300_000)
        names = [next(entries).name for _ in range(1500)]
        for _ in range(3):
            tree.kill_worker()
            assert nasty.facts(tree.path / "files") == nasty.facts(source / "files")
        assert tree.status()["restarts"] == 3
        assert half + file.read() == (source / "zeros").read_bytes()
        names += [entry.name for entry in entries]
    assert sorted(names) == sorted(os.listdir(source / "many"))


def test_devices_that_stay_away_are_an_error(image: SmallImage, mount: Mount) -> None:
    tree = mount(image.metadata, ["/nowhere/device"], io_timeout=0.5)
    assert (tree.path / "files/100").stat().st_size == 100
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            (tree.path / "files/65537").read_bytes()
    assert "device /nowhere/device is not served: No such file or directory" in tree.log()
    assert os.readlink(tree.path / "link") == "files/100"
