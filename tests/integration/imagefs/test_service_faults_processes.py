"""Processes of the service and its clients that come together or die: readers wait or get EIO, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from stripefs.fuse import kernel
from tests.integration.imagefs.conftest import next_line, programs
from tests.support.images.faults import (
    drop_pages,
    ensure,
    kill_supervisor,
    left,
    mount_here,
    mounts_below,
    start_reader,
    sums,
    umount_here,
    until_nothing_is_left,
)
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "0", "io_timeout": "20"}


# -- together ------------------------------------------------------------------------------------------------------


def test_many_first_mounts_after_a_crash(service: Service, image: tuple[Path, Path]) -> None:
    """All at once, while the card, the socket and the mount of a killed daemon lie there. One daemon is started."""
    source, store = image
    service.ok("mount", f"{store}#t", str(service.mountpoint()))
    kill_supervisor(service)
    eventually(lambda: not service.processes(), "the end of its worker")
    targets = [service.mountpoint(f"mnt{number}") for number in range(8)]
    for process in [service.start("mount", f"{store}#t", str(target)) for target in targets]:
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
    assert service.processes() == [service.worker()]
    assert len(service.status()["images"]) == len(targets)
    assert sums(targets[3]) == sums(source)
    for target in targets:
        umount_here(service, target)


def test_two_at_one_mountpoint(host: Service, new_image: tuple[Path, Path]) -> None:
    source, store = new_image
    target = host.mountpoint()
    processes = [host.start("mount", "--rw", f"{store}#t", str(target)) for _ in range(3)]
    told = [process.communicate(timeout=60)[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 32, 32]
    assert all("already" in line for line in told if line)
    assert [mount.path for mount in kernel.mounts()].count(str(target)) == 1
    assert sums(target) == sums(source)
    host.ok("umount", str(target))
    until_nothing_is_left(host)


# -- killed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--plane", "tree", "--rw")], ids=str)
def test_mounts_that_are_killed(host: Service, new_image: tuple[Path, Path], options: tuple[str, ...]) -> None:
    """At many moments. A mount made by then stays, and can be used and unmounted; nothing stays of the others."""
    source, store = new_image
    mount = ("mount", *options, f"{store}#t")
    begun, chance = time.monotonic(), random.Random(7)
    host.ok(*mount, str(host.mountpoint()))
    whole = time.monotonic() - begun
    for number in range(6):
        process = host.start(*mount, str(host.mountpoint(f"mnt{number}")), start_new_session=True)
        time.sleep(whole * (number + chance.random()) / 6)
        process.kill()  # though not what it has started
        process.communicate()

    def cleared() -> bool:
        for image in host.status()["images"]:
            if not image["owner"] and kernel.find_mount(image["mountpoint"]) is not None:
                assert sums(Path(image["mountpoint"])) == sums(source)
                umount_here(host, Path(image["mountpoint"]))
        return not left(host)

    eventually(cleared, "every mount to be reported and unmounted, or gone")


def test_a_container_outlives_the_daemon(service: Service, tmp_path: Path) -> None:
    """The next one serves what it reads through the tree plane, and leaves what it needs where it is."""
    script = "echo begun; read line; touch $IMAGEFS_READY && cat /bin/* > /dev/null && echo done"
    store = programs(tmp_path / "image")
    process = service.start("run", "--plane", "tree", f"{store}#small", "--", "sh", "-c", script, stdin=-1)
    assert next_line(process) == "begun\n"
    kill_supervisor(service)
    dead = Path(service.settings.runtime, "imagefs/runs/zombie")  # the last one to be removed, by its name
    dead.mkdir()
    ensure(service)
    eventually(lambda: not dead.exists(), "the daemon to look for what was left")
    target = service.mountpoint()
    service.ok("mount", "--no-record", f"{store}#small", str(target))
    out, err = process.communicate("\n", timeout=60)
    assert (out, process.returncode) == ("done\n", 0), err
    umount_here(service, target)
    until_nothing_is_left(service)


def test_a_first_mount_that_is_killed(service: Service, image: tuple[Path, Path]) -> None:
    """While it starts the daemon: it is there as a whole, or not at all. The next client never meets half of one."""
    source, store = image
    target = service.mountpoint()
    process = service.start("mount", "--rw", f"{store}#t", str(target))
    eventually(lambda: starts_a_daemon(process.pid), "its daemon to be started")
    process.kill()
    process.communicate()
    service.ok("mount", "--rw", f"{store}#t", str(target))
    assert service.processes() == [service.worker()]
    assert sums(target) == sums(source)
    umount_here(service, target)
    until_nothing_is_left(service)


def starts_a_daemon(client: int) -> bool:
    children = Path(f"/proc/{client}/task/{client}/children").read_text().split()
    return any(b"stripefs.fuse.daemonize" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


# -- workers and supervisors that die ----------------------------------------------------------------------------------


def test_workers_killed_at_random_moments(host: Service, new_image: tuple[Path, Path]) -> None:
    """Two readers of a slow store; each worker answers something before it goes."""
    source, store = new_image
    target = host.mountpoint()
    host.ok("mount", f"throttled+file://{store}?rate=2MB/s&hosts=1#t", str(target))
    client = Client(host.settings)
    before = client.status()["restarts"]
    readers = [start_reader(target), start_reader(target, "backwards")]
    chance, answered, kills = random.Random(5), 0, 0
    while kills < 5 and any(reader.poll() is None for reader in readers):
        status = client.status()
        if status["requests"]["answered"] > answered:
            answered = status["requests"]["answered"]
            time.sleep(chance.random() / 2)
            os.kill(client.status()["worker_pid"], signal.SIGKILL)
            kills += 1
    for reader in readers:
        out, _ = reader.communicate(timeout=60)
        assert dict(line.split() for line in out.splitlines()) == sums(source)
        assert reader.returncode == 0
    status = client.status()
    assert status["restarts"] - before == kills >= 3
    (mounted,) = status["images"]
    assert mounted["unrecorded"] == "its worker was replaced"
    assert [device["handles"] for device in mounted["devices"]] == [1]
    umount_here(host, target)
    eventually(lambda: client.status()["blocks"]["devices"] == [], "the device to be closed")


def test_a_daemon_that_dies_under_all_kinds_of_mounts(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    plain, writable, tree = (service.mountpoint(name) for name in ("plain", "writable", "tree"))
    ensure(service)
    mount_here(service, store, plain)
    mount_here(service, store, writable, rw=True)
    mount_here(service, store, tree, plane="tree")
    (writable / "new").write_text("mine")
    kill_supervisor(service)
    for target in (plain, writable):
        assert len(os.listdir(target)) >= len(os.listdir(source))
        with pytest.raises(OSError, match="Input/output error"):
            (target / "large").read_bytes()
    assert (writable / "new").read_text() == "mine"
    for command in (["status"], ["status", "--json"], ["ready", str(plain)]):
        done = service.run(*command)
        assert (done.returncode, done.stdout) == (32, "")
        assert done.stderr == f"imagefs: no imagefs daemon runs ({service.settings.socket}); imagefs mount starts one\n"
    service.ok("umount", str(writable))
    # The next daemon serves what the tree plane reads too.
    reader = start_reader(tree)
    again = service.mountpoint("again")
    service.ok("mount", f"{store}#t", str(again))
    out, _ = reader.communicate(timeout=60)
    assert dict(line.split() for line in out.splitlines()) == sums(source) == sums(again)
    for target in (plain, tree, again):
        umount_here(service, target)
    assert mounts_below(service) == [service.settings.devices]
    assert os.listdir(Path(service.settings.cache, "upper")) == []


def test_what_is_here_as_a_whole_needs_no_daemon(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    service.environment["IMAGEFS_BACKGROUND_RATE"] = "1GB/s"
    first, second = service.mountpoint("first"), service.mountpoint("second")
    service.ok("mount", "--no-record", f"{store}#t", str(first))
    service.ok("ready", str(first))
    eventually(lambda: service.status()["images"][0]["devices"][0]["complete"], "the whole image")
    service.ok("mount", "--rw", f"{store}#t", str(second))
    assert "here already" in service.status()["images"][1]["unrecorded"]
    kill_supervisor(service)
    drop_pages(second / "large")
    assert sums(second) == sums(source)
    (second / "large").write_bytes(b"mine")
    service.ok("mount", f"{store}#t", str(service.mountpoint("third")))  # starts a daemon, which leaves that alone
    eventually(lambda: service.status()["images"], "the daemon")
    assert (second / "large").read_bytes() == b"mine"
    for name in ("first", "second", "third"):
        umount_here(service, service.folder / name)
    assert os.listdir(Path(service.settings.cache, "upper")) == []


def test_a_worker_that_hangs_keeps_nobody_from_asking(host: Service, image: tuple[Path, Path]) -> None:
    """A stopped worker answers nothing, so what must not depend on it does not."""
    _, store = image
    target = host.mountpoint()
    mount_here(host, store, target)
    worker = host.worker()
    os.kill(worker, signal.SIGSTOP)
    try:
        asking = host.start("status")
        done = host.run("mount", f"{store}#t", str(target))
        assert "is a mountpoint already" in done.stderr
        assert host.answers()
        assert asking.poll() is None
    finally:
        os.kill(worker, signal.SIGCONT)
    out, err = asking.communicate(timeout=60)
    assert str(target) in out, err
    umount_here(host, target)
