"""The image of deploy/Dockerfile, built for real on a base that debootstrap makes, and its tree on an alien node."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.checkout import CHECKOUT

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1800)]

PREFIX = "/opt/bootseer/tested"
DIRECTORIES = ("dev", "etc", "mnt", "opt", "proc", "root", "run", "store", "sys", "tmp", "var/cache", "var/lib")

_ENTER = """
mount --bind {node} {node} && cd {node} &&
mount -t proc proc proc && mount --rbind /sys sys && mount --rbind /dev dev &&
mount -t tmpfs tmpfs run && mkdir -p var/old && pivot_root . var/old && exec /bin/sh -euc '{script}'
"""

_LAZILY = f"""
/bin/busybox umount -l /var/old
export PATH={PREFIX}/bin:/bin HOME=/root
imagefs build --quiet dir:/data /store --tag t >/dev/null
mkdir /mnt/image /mnt/files
imagefs mount /store#t /mnt/image
cat /mnt/image/word
imagefs umount /mnt/image
imagefs daemon --stop
stripefs mount --rw file:///data /mnt/files
echo written >/mnt/files/new
stripefs umount /mnt/files
"""


class Built:
    """The image, of which `tree` is a copy of /opt/bootseer. Commands of buildah work in `folder` alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._certificates = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        (folder / "pip.conf").write_text("[global]\ncert = /tmp/certificates\n")
        self._base()
        self.buildah(
            *("bud", "--isolation", "chroot", "--format", "docker", "--file", "deploy/Dockerfile", "--tag", "bootseer"),
            *("--build-arg", "BASE=localhost/debian", "--build-arg", "RELEASE=tested"),
            *("--volume", f"{self._certificates}:/tmp/certificates:ro"),
            *("--volume", f"{folder / 'pip.conf'}:/etc/pip.conf:ro", "."),
        )
        container = self.buildah("from", "localhost/bootseer")
        self.tree = folder / "tree"
        shutil.copytree(f"{self.buildah('mount', container)}/opt/bootseer", self.tree, symlinks=True)
        self.said = self.buildah("run", "--isolation", "chroot", container, "--", "imagefs", "--version")
        self.buildah("rm", container)

    def buildah(self, *arguments: str) -> str:
        storage = ("--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run"))
        done = subprocess.run(["buildah", *storage, *arguments], cwd=CHECKOUT, capture_output=True, text=True)
        assert not done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout.strip()

    def _base(self) -> None:
        """Builds Debian's base system, which is what debian:12-slim is."""
        root = self.folder / "base"
        done = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], capture_output=True, text=True)
        assert not done.returncode, done.stdout[-2000:]
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(root), "/")
        self.buildah("commit", "--quiet", container, "localhost/debian")
        self.buildah("rm", container)
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp("image")
    try:
        yield Built(folder)
    finally:
        for mount in reversed(kernel.mounts()):
            if Path(mount.path).is_relative_to(folder):
                kernel.unmount(mount.path, kernel.MNT_DETACH)
        shutil.rmtree(folder)


@pytest.fixture
def node(built: Built, tmp_path: Path) -> Path:
    """A node of another distribution: a static busybox, and no C library."""
    for name in ("bin", "data", *DIRECTORIES):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tmp_path / "bin")
    for name in ("cat", "mkdir", "sh"):
        (tmp_path / "bin" / name).symlink_to("busybox")
    (tmp_path / "data/word").write_text("lazily\n")
    shutil.copytree(built.tree, tmp_path / "opt/bootseer", symlinks=True)
    return tmp_path


def on(node: Path, script: str) -> str:
    """The output of a shell on the node."""
    entered = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER.format(node=node, script=script)]
    done = subprocess.run(entered, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def test_the_commands_are_there(built: Built) -> None:
    assert built.said.startswith("imagefs ")


def test_a_node_of_another_distribution_does_all_that_its_kernel_can(node: Path) -> None:
    told = json.loads(on(node, f"{PREFIX}/bin/imagefs doctor --json --no-write /data"))
    found = {one["check"]: one["state"] for one in told["findings"]}
    assert {found[f"kernel.{name}"] for name in ("erofs-file", "overlay", "fuse")} == {"ok"}
    assert found["store.read"] == "ok"


def test_packages_find_their_libraries_in_the_tree_alone(node: Path) -> None:
    program = """
import ctypes, hdfs_native, grpc, pyarrow.fs, pyfuse3, sqlite3, ssl
from imagefs.snapshotter.proto import snapshots_pb2
ctypes.CDLL("libgssapi_krb5.so.2")
print({line.split()[-1] for line in open("/proc/self/maps") if "/" in line} - {""})
"""
    (node / "program.py").write_text(program)
    paths = on(node, f"{PREFIX}/bin/python3 /program.py")
    assert all(path.strip("{}' \n").startswith(PREFIX) for path in paths.split(","))


def test_images_and_files_are_mounted_there(node: Path) -> None:
    assert on(node, _LAZILY) == "lazily\n"
    assert (node / "data/new").read_text() == "written\n"
    assert not [name for name in os.listdir(node / "mnt") if os.path.ismount(node / "mnt" / name)]
