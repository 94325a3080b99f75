"""Clients of the service that come together, die on the way, or do behind its back what they should ask for."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from stripefs.mount import kernel
from tests.imagefs.containers import fill
from tests.imagefs.faults import ensure, make_image, mount_here, mounts_below, status_of, sums, umount_here
from tests.imagefs.service import PATIENCE, Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.stress]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, background_rate="0", io_timeout="20")
    try:
        yield made
    finally:
        made.close()


def left(service: Service) -> list[str]:
    """What there is besides the daemon: uses, mounts, folders of uses, and processes but for its worker."""
    status = status_of(service)
    runtime = Path(service.settings.runtime, "imagefs")
    folders = [Path(service.settings.cache, "upper"), runtime / "mounts", runtime / "ready"]
    return [
        *(f"use {image['id']} at {image['mountpoint']}" for image in status["images"]),
        *(f"mount {path}" for path in mounts_below(service) if path != service.settings.devices),
        *(str(path) for folder in folders if folder.exists() for path in folder.iterdir()),
        *(f"process {process}" for process in service.processes() if process != status["worker_pid"]),
    ]


def until_nothing_is_left(service: Service) -> None:
    end = time.monotonic() + PATIENCE
    while (found := left(service)) and time.monotonic() < end:
        time.sleep(0.05)
    assert found == []


# -- together ------------------------------------------------------------------------------------------------------


def test_many_first_mounts_after_a_crash(service: Service, image: tuple[Path, Path]) -> None:
    """All at once, while the card, the socket and the mount of a killed daemon lie there. One daemon is started."""
    source, store = image
    service.ok("mount", f"{store}#t", str(service.mountpoint()))
    os.kill(status_of(service)["supervisor_pid"], signal.SIGKILL)
    eventually(lambda: not service.processes(), "the end of the daemon")
    targets = [service.mountpoint(f"mnt{number}") for number in range(8)]
    for process in [service.start("mount", f"{store}#t", str(target)) for target in targets]:
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
    assert service.processes() == [service.worker()]
    assert len(status_of(service)["images"]) == len(targets)
    assert sums(targets[3]) == sums(source)
    for target in targets:
        umount_here(service, target)


def test_two_at_one_mountpoint(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    target = service.mountpoint()
    processes = [service.start("mount", "--rw", f"{store}#t", str(target)) for _ in range(3)]
    told = [process.communicate(timeout=60)[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 32, 32]
    assert all("already" in line for line in told if line)
    assert [mount.path for mount in kernel.mounts()].count(str(target)) == 1
    assert sums(target) == sums(source)
    service.ok("umount", str(target))
    until_nothing_is_left(service)


# -- killed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--rw",), ("--plane", "tree"), ("--plane", "tree", "--rw")], ids=str)
def test_mounts_that_are_killed(service: Service, image: tuple[Path, Path], options: tuple[str, ...]) -> None:
    """At many moments. What is mounted by then stays, and can be used and unmounted; of all others nothing stays."""
    source, store = image
    ensure(service)
    begun = time.monotonic()
    mount_by_command(service, store, service.mountpoint("whole"), options)
    whole, chance = time.monotonic() - begun, random.Random(7)
    service.ok("umount", str(service.folder / "whole"))
    targets = [service.mountpoint(f"mnt{number}") for number in range(10)]
    for number, target in enumerate(targets):
        process = service.start("mount", *options, f"{store}#t", str(target), start_new_session=True)
        time.sleep(whole * (number + chance.random()) / len(targets))
        process.kill()
        process.communicate()
    time.sleep(1)  # in which the daemon comes to what it was asked by clients that are gone
    eventually(lambda: settled(service), "every mount to be reported, or gone")
    for target in targets:
        if kernel.find_mount(str(target)) is not None:
            assert sums(target) == sums(source)
            service.ok("umount", str(target))
    until_nothing_is_left(service)


def mount_by_command(service: Service, store: Path, target: Path, options: tuple[str, ...]) -> None:
    service.ok("mount", *options, f"{store}#t", str(target))


def settled(service: Service) -> bool:
    """Whether no use belongs to a process any more, and each process is one of a mount's."""
    status = status_of(service)
    mounts = [mount for mount in kernel.mounts() if Path(mount.path).is_relative_to(service.folder)]
    trees = [mount for mount in mounts if mount.fstype == "fuse.imagefs"]
    writable = [image for image in status["images"] if image["plane"] != "erofs"]
    at_least = {mount.path for mount in mounts if Path(mount.path).parent == service.folder}
    known = {image["mountpoint"] for image in status["images"]}
    return (
        not any(image["owner"] for image in status["images"]) and at_least == known and len(trees) <= len(writable) + 1
    )


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, store = tmp_path_factory.mktemp("root") / "root", tmp_path_factory.mktemp("store")
    fill(root)
    built(root, store, "t", {"config": {"Env": ["PATH=/bin"], "Cmd": ["sh", "-c", "echo begun; sleep 1000"]}})
    return store


@pytest.mark.parametrize("options", [("--rw",), ("--plane", "tree")], ids=str)
def test_runs_that_are_killed(service: Service, containers: Path, options: tuple[str, ...]) -> None:
    process = service.start("run", *options, f"{containers}#t")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.communicate()
    until_nothing_is_left(service)
    for moment in (0.2, 0.3, 0.4):
        process = service.start("run", *options, f"{containers}#t")
        time.sleep(moment)
        process.kill()
        process.communicate()
    service.ok("run", f"{containers}#t", "--", "sh", "-c", "exit 0")  # sweeps away what was written
    until_nothing_is_left(service)


def test_a_container_outlives_the_daemon(service: Service, containers: Path) -> None:
    """The next one serves what it reads through the tree plane, and leaves what it needs where it is."""
    script = "echo begun; read line; touch $IMAGEFS_READY && cat /bin/* > /dev/null && echo done"
    process = service.start("run", "--plane", "tree", f"{containers}#t", "--", "sh", "-c", script, stdin=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.kill(status_of(service)["supervisor_pid"], signal.SIGKILL)
    eventually(lambda: not service.answers(), "the end of the daemon")
    target = service.mountpoint()
    service.ok("mount", f"{containers}#t", str(target))
    time.sleep(0.5)  # in which it looks for what was left
    out, err = process.communicate("\n", timeout=60)
    assert (out, process.returncode) == ("done\n", 0), err
    service.ok("umount", str(target))
    until_nothing_is_left(service)


@pytest.mark.slow
def test_first_mounts_that_are_killed(service: Service, image: tuple[Path, Path]) -> None:
    """While they start the daemon: it is there as a whole, or not at all."""
    source, store = image
    target = service.mountpoint()
    for moment in range(6):
        process = service.start("mount", "--rw", f"{store}#t", str(target))
        time.sleep(0.2 + moment / 8)
        process.kill()
        process.communicate()
        if kernel.find_mount(str(target)) is None:
            service.ok("mount", "--rw", f"{store}#t", str(target))
        assert sums(target) == sums(source)
        service.ok("umount", str(target))
        until_nothing_is_left(service)
        service.ok("daemon", "--stop")
        eventually(lambda: not service.processes() and not mounts_below(service), "the end of the daemon")


# -- behind its back -----------------------------------------------------------------------------------------------


def test_unmounts_behind_its_back(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    ensure(service)
    targets = {name: service.mountpoint(name) for name in ("plain", "writable", "tree", "lazy", "moved")}
    mount_here(service, store, targets["plain"])
    mount_here(service, store, targets["writable"], rw=True)
    mount_here(service, store, targets["tree"], plane="tree", rw=True)
    mount_here(service, store, targets["lazy"], rw=True)
    mount_here(service, store, targets["moved"], rw=True)
    for name in ("plain", "writable", "tree"):
        kernel.unmount(str(targets[name]))
    with (targets["lazy"] / "large").open("rb") as file:
        kernel.unmount(str(targets["lazy"]), kernel.MNT_DETACH)
        # It is not where it was; but an overlay with that upper directory is, and what is in it stays.
        (targets["moved"] / "mine").write_text("mine")
        elsewhere = service.mountpoint("elsewhere")
        subprocess.run(["mount", "--make-private", str(targets["moved"])], check=True)
        subprocess.run(["mount", "--bind", str(targets["moved"]), str(elsewhere)], check=True)
        kernel.unmount(str(targets["moved"]))
        eventually(lambda: len(status_of(service)["images"]) == 1, "it to be noticed")
        assert status_of(service)["images"][0]["mountpoint"] == str(targets["moved"])
        assert (elsewhere / "mine").read_text() == "mine"
        assert len(file.read()) == len((source / "large").read_bytes())
    kernel.unmount(str(elsewhere))
    until_nothing_is_left(service)


def test_a_mountpoint_is_used_again_at_once(service: Service, image: tuple[Path, Path]) -> None:
    """Before the daemon has noticed that the first use is over; and after a lazy unmount of a mount in use."""
    source, store = image
    ensure(service)
    target = service.mountpoint()
    mount_here(service, store, target, rw=True)
    kernel.unmount(str(target))
    mount_here(service, store, target, rw=True)
    (one,) = status_of(service)["images"]
    with (target / "large").open("rb") as file:
        file.read(1)
        umount_here(service, target, lazy=True)
        assert status_of(service)["images"] == []
        mount_here(service, store, target)
        assert sums(target) == sums(source)
        assert len(file.read()) + 1 == (source / "large").stat().st_size
    (other,) = status_of(service)["images"]
    assert one["id"] != other["id"]
    assert json.loads(service.ok("ready", "--json", str(target)))["start"]["ended_by"] == "ready"
    umount_here(service, target)
    until_nothing_is_left(service)


def test_something_else_lies_on_top(service: Service, image: tuple[Path, Path]) -> None:
    _, store = image
    ensure(service)
    target = service.mountpoint()
    mount_here(service, store, target, rw=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(target)], check=True)
    done = service.run("umount", str(target))
    assert done.returncode == 32
    assert "tmpfs is mounted over the image" in done.stderr
    kernel.unmount(str(target))
    service.ok("umount", str(target))
    for path in (str(target), service.settings.devices, "/proc"):
        assert service.run("umount", path).returncode == 32
    until_nothing_is_left(service)


def test_mountpoints_that_are_none(service: Service, image: tuple[Path, Path], tmp_path: Path) -> None:
    _, store = image
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    full = service.mountpoint("full")
    (full / "x").touch()
    for path, words in {
        "missing": "No such file or directory; mkdir -p",
        "file": "Not a directory",
        "full": "is not empty",
        "loop": "Too many levels of symbolic links",
    }.items():
        done = service.run("mount", f"{store}#t", str(tmp_path / path))
        assert (done.returncode, len(done.stderr.splitlines())) == (32, 1)
        assert words in done.stderr
    assert not service.answers()  # no daemon for that


@pytest.mark.slow
def test_a_mountpoint_reached_through_links_or_moved(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    folder = service.mountpoint("folder")
    target = folder / "mnt"
    target.mkdir()
    link = service.folder / "link"
    link.symlink_to(target)
    service.ok("mount", f"{store}#t", str(link))
    (image_,) = status_of(service)["images"]
    assert image_["mountpoint"] == str(target)
    service.ok("umount", str(link))
    service.ok("mount", "--rw", f"{store}#t", str(link / "."))
    folder.rename(service.folder / "renamed")  # a mountpoint itself cannot be removed, what is above it can be moved
    moved = service.folder / "renamed/mnt"
    time.sleep(2.5)
    assert sums(moved) == sums(source)
    assert len(status_of(service)["images"]) == 1
    service.ok("umount", str(moved))
    until_nothing_is_left(service)


def test_a_device_is_served_as_long_as_the_kernel_holds_it(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    ensure(service)
    target = service.mountpoint()
    mount_here(service, store, target)
    client = Client(service.settings)
    client.detach(client.status()["images"][0]["id"])
    assert client.status()["images"] == []
    service.kill_worker()
    assert sums(target) == sums(source)
    assert len(client.status()["blocks"]["devices"]) == 1
    service.ok("umount", str(target))
    eventually(lambda: client.status()["blocks"]["devices"] == [], "the device to be closed")


_ELSEWHERE = """
set -e
mount --make-rprivate /
"$@"
echo mounted
read line
"""


@pytest.mark.slow
def test_a_mount_in_another_mount_namespace(service: Service, image: tuple[Path, Path]) -> None:
    """The daemon does not see it in its own, but in that of the client; and that it ends with that."""
    _, store = image
    ensure(service)
    target = service.mountpoint()
    command = [sys.executable, "-P", "-c", "import sys; from imagefs.cli.main import run; sys.exit(run())"]
    mount = [*command, "mount", "--rw", f"{store}#t", str(target)]
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", _ELSEWHERE, "sh", *mount],
        env=service.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mounted\n"
    there = Path(f"/proc/{process.pid}/root{target}")
    (there / "mine").write_text("mine")
    time.sleep(2.5)
    assert len(status_of(service)["images"]) == 1
    assert (there / "mine").read_text() == "mine"
    assert kernel.find_mount(str(target)) is None
    process.communicate("\n", timeout=30)
    until_nothing_is_left(service)


# -- a plain user --------------------------------------------------------------------------------------------------

_AS_NOBODY = (
    *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)
_PREPARE = (
    "mount --make-rprivate / && mount -t tmpfs none {0} && mknod -m 666 {0}/fuse c 10 229 && "
    'mount --bind {0}/fuse /dev/fuse && exec "$@"'
)
_USE = """
set -e
store=$1 target=$2
imagefs() { "$PYTHON" -P -c 'import sys; from imagefs.cli.main import run; sys.exit(run())' "$@"; }
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


def test_a_plain_user(service: Service, image: tuple[Path, Path], tmp_path: Path) -> None:
    """The tree plane through fusermount3; a killed daemon's mount is taken away by it too."""
    source, store = image
    devices, home = tmp_path / "devices", tmp_path / "home"
    devices.mkdir()
    shutil.copytree(store, home / "store")
    (home / "mnt").mkdir()
    for path in (home, *home.rglob("*")):
        os.chown(path, 65534, 65534)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    environment = {
        **{name: value for name, value in service.environment.items() if not name.startswith("IMAGEFS_")},
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "PYTHON": sys.executable,
    }
    done = subprocess.run(
        [
            *("unshare", "-m", "sh", "-c", _PREPARE.format(devices), "sh"),
            *_AS_NOBODY,
            *("bash", "-c", _USE, "bash", str(home / "store"), str(home / "mnt")),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(sums(source)["large"]) == 2
    assert "erofs: 32" in done.stdout
