"""Mounts that are moved, covered or taken away behind the daemon's back, are elsewhere, or are a plain user's."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.integration.imagefs.conftest import by_nobody
from tests.support.images.faults import mount_here, sums, umount_here, until_nothing_is_left
from tests.support.mount_namespace import unshared
from tests.tools.imagefs_daemon import IMAGEFS, Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "0", "io_timeout": "20"}


# -- behind its back -----------------------------------------------------------------------------------------------


def test_what_is_gone_and_what_is_only_elsewhere(host: Service, new_image: tuple[Path, Path]) -> None:
    """Mounts that somebody took away are noticed; in the same time those that were moved or hidden are not given up."""
    source, store = new_image
    folder = host.mountpoint("folder")
    gone = {name: host.mountpoint(name) for name in ("plain", "writable", "tree", "lazy")}
    bound, elsewhere, renamed = host.mountpoint("bound"), host.mountpoint("elsewhere"), folder / "mnt"
    renamed.mkdir()
    mount_here(host, store, gone["plain"])
    for target in (gone["writable"], gone["lazy"], bound, renamed):
        mount_here(host, store, target, rw=True)
    mount_here(host, store, gone["tree"], plane="tree", rw=True)
    with in_another_namespace(host, store, host.mountpoint("there")) as there:
        (there / "mine").write_text("mine")
        # A mountpoint itself cannot be removed, what is above it can be renamed; its overlay can be bound elsewhere.
        folder.rename(host.folder / "renamed")
        (bound / "mine").write_text("mine")
        subprocess.run(["mount", "--make-private", str(bound)], check=True)
        subprocess.run(["mount", "--bind", str(bound), str(elsewhere)], check=True)
        kernel.unmount(str(bound))
        with (gone["lazy"] / "large").open("rb") as file:
            for name, target in gone.items():
                kernel.unmount(str(target), kernel.MNT_DETACH if name == "lazy" else 0)
            eventually(lambda: len(known_mountpoints(host)) <= 3, "those that are gone to be noticed")
            assert known_mountpoints(host) == {str(bound), str(renamed), str(host.folder / "there")}
            assert len(file.read()) == (source / "large").stat().st_size
        assert (elsewhere / "mine").read_text() == (there / "mine").read_text() == "mine"
        assert kernel.find_mount(str(host.folder / "there")) is None
        assert sums(host.folder / "renamed/mnt") == sums(source)
        kernel.unmount(str(elsewhere))
        umount_here(host, host.folder / "renamed/mnt")
    until_nothing_is_left(host)


def known_mountpoints(service: Service) -> set[str]:
    return {image["mountpoint"] for image in service.status()["images"]}


_AND_WAIT = """
set -e
"$@"
echo mounted
read line
"""


@contextlib.contextmanager
def in_another_namespace(service: Service, store: Path, target: Path) -> Iterator[Path]:
    """A writable mount in a mount namespace that ends with the block; where it can be seen from here."""
    mount = [*IMAGEFS, "mount", "--rw", f"{store}#t", str(target)]
    with subprocess.Popen(
        unshared(service.folder, "sh", "-c", _AND_WAIT, "sh", *mount),
        env=service.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "mounted\n"
            yield Path(f"/proc/{process.pid}/root{target}")
        finally:
            process.communicate("\n", timeout=30)


def test_a_mountpoint_is_used_again_at_once(host: Service, new_image: tuple[Path, Path]) -> None:
    """Before the daemon has noticed that the first use is over; and after a lazy unmount of a mount in use."""
    source, store = new_image
    target = host.mountpoint()
    mount_here(host, store, target, rw=True)
    kernel.unmount(str(target))
    mount_here(host, store, target, rw=True)
    (one,) = host.status()["images"]
    with (target / "large").open("rb") as file:
        file.read(1)
        umount_here(host, target, lazy=True)
        assert host.status()["images"] == []
        mount_here(host, store, target)
        assert sums(target) == sums(source)
        assert len(file.read()) + 1 == (source / "large").stat().st_size
    (other,) = host.status()["images"]
    assert one["id"] != other["id"]
    assert json.loads(host.ok("ready", "--json", str(target)))["start"]["ended_by"] == "ready"
    umount_here(host, target)
    until_nothing_is_left(host)


def test_something_else_lies_on_top(host: Service, image: tuple[Path, Path]) -> None:
    _, store = image
    target = host.mountpoint()
    mount_here(host, store, target, rw=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(target)], check=True)
    done = host.run("umount", str(target))
    assert done.returncode == 32
    assert "tmpfs is mounted over the image" in done.stderr
    kernel.unmount(str(target))
    host.ok("umount", str(target))
    for path in (str(target), host.settings.devices, "/proc"):
        assert host.run("umount", path).returncode == 32
    until_nothing_is_left(host)


def test_a_mountpoint_that_is_none(service: Service, image: tuple[Path, Path], tmp_path: Path) -> None:
    done = service.run("mount", f"{image[1]}#t", str(tmp_path / "missing"))
    assert (done.returncode, len(done.stderr.splitlines())) == (32, 1)
    assert "No such file or directory; mkdir -p" in done.stderr
    assert not service.answers()  # no daemon for that


def test_a_mountpoint_reached_through_links(host: Service, image: tuple[Path, Path]) -> None:
    _, store = image
    target, link = host.mountpoint(), host.folder / "link"
    link.symlink_to(target)
    for path in (link, link / "."):
        host.ok("mount", f"{store}#t", str(path))
        assert known_mountpoints(host) == {str(target)}
        host.ok("umount", str(path))
    until_nothing_is_left(host)


# -- a plain user --------------------------------------------------------------------------------------------------

_USE = """
set -e
store=$1 target=$2
pid() { imagefs status --json | "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["supervisor_pid"])'; }
imagefs mount "$store#t" "$target"
sha256sum "$target/large"
imagefs ready "$target" >&2
imagefs status >&2
imagefs umount "$target"
kill -9 $(pid)
while imagefs status 2>/dev/null >&2; do sleep 0.1; done
imagefs mount "$store#t" "$target"
sha256sum "$target/large"
imagefs mount --plane erofs "$store#t" "$target/.." || echo "erofs: $?"
imagefs umount "$target"
imagefs daemon --stop
"""


def test_a_plain_user(service: Service, image: tuple[Path, Path], open_path: Path) -> None:
    """The tree plane through fusermount3; a killed daemon's mount is taken away by it too."""
    source, store = image
    done = by_nobody(service, store, open_path, _USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(sums(source)["large"]) == 2
    assert "erofs: 32" in done.stdout
