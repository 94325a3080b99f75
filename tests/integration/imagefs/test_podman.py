"""Debian's podman and buildah, with images that `imagefs podman` shows them.

They have an image store and a runtime folder of their own. Not every machine lets a process raise its limits, which
podman does by itself: so containers here are given some.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.podman import ImageStore
from stripefs.fuse import kernel
from tests.integration.imagefs.conftest import programs
from tests.tools.containers import wait_for
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]

_CONFIG = {"Env": ["PATH=/bin", "GREETING=hello"], "Entrypoint": ["/bin/sh", "-c"], "WorkingDir": "/srv"}
_CONTAINER = ("--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/storage-run"
[storage.options]
additionalimagestores = ["{root}"]
[storage.options.overlay]
skip_mount_home = "true"
"""


@dataclass(frozen=True)
class Podman:
    """podman and buildah as a host has them whose storage.conf names `root`."""

    service: Service
    root: Path
    store: Path

    def imagefs(self, *arguments: str) -> str:
        return self.service.ok("podman", *arguments, "--root", str(self.root))

    def ok(self, program: str, *arguments: str) -> str:
        done = self.try_(program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def try_(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        folder = self.service.folder
        own = ["--tmpdir", str(folder / "tmp"), "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
        command = [program, *(own if program == "podman" else []), *arguments]
        environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    def run(self, image: str, *command: str, options: tuple[str, ...] = ()) -> str:
        return self.ok("podman", "run", "--rm", *_CONTAINER, *options, image, *command)


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """An image in a store, shown as t:1. podman takes no folder with a long name."""
    with tempfile.TemporaryDirectory(prefix="podman-") as name, contextlib.closing(Service(Path(name))) as service:
        folder = service.folder
        made = Podman(service, folder / "images", programs(folder, 0, **_CONFIG))
        (folder / "storage.conf").write_text(_STORAGE.format(folder=folder, root=made.root))
        made.imagefs("add", f"{made.store}#small", "t:1")
        try:
            yield made
        finally:
            made.ok("podman", "rm", "--all", "--force", "--time", "0")
            _unmount_below(folder)
            shutil.rmtree(ImageStore(Client(service.settings), str(made.root)).run)


def _unmount_below(folder: Path) -> None:
    """The mounts of leases, which the daemon keeps for a while."""
    for one in reversed(kernel.mounts()):
        if Path(one.path).is_relative_to(folder):
            kernel.unmount(one.path, kernel.MNT_DETACH)


def test_a_container_runs_as_the_image_says(podman: Podman) -> None:
    assert podman.run("t:1", "echo $GREETING; pwd") == "hello\n/srv"
    assert podman.run("t:1", "echo changed > /etc/hosts.own; cat /etc/hosts.own") == "changed"
    assert podman.run("t:1", "ls /etc/hosts.own || echo gone").endswith("gone")
    assert podman.run("t:1", "id -un", options=("--user", "ann", "--read-only")) == "ann"
    data = (podman.service.folder / "root/srv/data").read_bytes()
    ours = subprocess.run(["sha256sum"], input=data, capture_output=True).stdout.split()[0].decode()
    theirs = podman.run("t:1", "busybox sha256sum /srv/data || /bin/busybox sha256sum /srv/data")
    assert theirs.split()[0] == ours


def test_it_is_listed_and_not_to_be_removed_by_accident(podman: Podman) -> None:
    (shown,) = json.loads(podman.ok("podman", "images", "--format", "json", "t:1"))
    assert (shown["Names"], shown["ReadOnly"]) == (["localhost/t:1"], True)
    assert podman.try_("podman", "rmi", "--force", "t:1").returncode
    assert podman.run("t:1", "echo there") == "there"


def test_a_container_is_committed_and_built_on(podman: Podman) -> None:
    name = podman.ok("podman", "create", *_CONTAINER, "t:1", "echo new > /srv/new; rm /bin/plain")
    podman.ok("podman", "start", "--attach", name)
    podman.ok("podman", "commit", "--quiet", name, "committed:1")
    podman.ok("podman", "rm", name)
    assert podman.run("committed:1", "cat /srv/new; ls -d /bin/plain /srv/data || true") == "new\n/srv/data"


def test_buildah_builds_on_it(podman: Podman, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text('FROM t:1\nRUN echo built > /srv/built\nCMD ["cat /srv/built"]\n')
    podman.ok("buildah", "bud", "--quiet", "--isolation", "chroot", "--tag", "built:1", str(tmp_path))
    assert podman.run("built:1") == "built"
    working = podman.ok("buildah", "from", "t:1")
    assert podman.ok("buildah", "run", "--isolation", "chroot", working, "--", "ls", "/srv") == "data"
    podman.ok("buildah", "commit", "--quiet", "--squash", working, f"dir:{tmp_path / 'squashed'}")
    podman.ok("buildah", "rm", working)
    assert (tmp_path / "squashed/manifest.json").exists()


def test_the_layer_is_never_sent_without_its_files(podman: Podman, tmp_path: Path) -> None:
    done = podman.try_("podman", "push", "t:1", f"dir:{tmp_path / 'pushed'}")
    assert done.returncode
    assert ".imagefs: no such file or directory" in done.stderr


def test_rootfs_of_a_mount(podman: Podman) -> None:
    """The other way, for a tree that has no image in podman's eyes."""
    target = podman.service.mountpoint()
    podman.service.ok("mount", f"{podman.store}#small", str(target))
    try:
        shown = podman.ok("podman", "run", "--rm", *_CONTAINER, "--rootfs", f"{target}:O", "/bin/busybox", "ls", "/srv")
        assert shown == "data"
    finally:
        podman.service.ok("umount", str(target))


def test_names_come_and_go(podman: Podman) -> None:
    client = Client(podman.service.settings)
    first = podman.imagefs("add", f"{podman.store}#small", "team/other:2")
    assert first == podman.imagefs("add", f"{podman.store}#small", "t:1")
    assert [one.lease.label for one in client.leases("podman")] == ["localhost/t:1", "localhost/team/other:2"]
    podman.imagefs("rm", "t:1")
    assert podman.run("localhost/team/other:2", "echo still") == "still"
    podman.imagefs("rm", "team/other:2")
    assert client.leases() == []
    assert podman.try_("podman", "run", "--pull", "never", *_CONTAINER, "t:1").returncode
    done = podman.service.run("podman", "rm", "t:1", "--root", str(podman.root))
    assert (done.returncode, "has no image localhost/t:1" in done.stderr) == (3, True)
    podman.imagefs("add", f"{podman.store}#small", "t:1")


def test_a_name_means_one_image_until_it_is_taken_away(podman: Podman, image: tuple[Path, Path]) -> None:
    done = podman.service.run("podman", "add", f"{image[1]}#t", "t:1", "--root", str(podman.root))
    assert done.returncode
    assert "release it first" not in done.stderr
    assert "imagefs podman rm localhost/t:1" in done.stderr


def test_adding_again_repairs_it_after_the_daemon_was_stopped(podman: Podman) -> None:
    podman.service.stop()
    _unmount_below(podman.service.folder / "run")
    assert podman.try_("podman", "run", "--rm", *_CONTAINER, "t:1", "echo here").returncode
    podman.imagefs("add", f"{podman.store}#small", "t:1")
    assert podman.run("t:1", "echo here") == "here"


def test_nothing_stays_of_an_image_that_podman_refuses(podman: Podman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(podman.service.environment, "CONTAINERS_STORAGE_CONF", "/nowhere/storage.conf")
    before = Client(podman.service.settings).leases()
    done = podman.service.run("podman", "add", f"{podman.store}#small", "third:1", "--root", str(podman.root))
    assert "podman pull failed" in done.stderr
    assert wait_for(lambda: Client(podman.service.settings).leases() == before)
