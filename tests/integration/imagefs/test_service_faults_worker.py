"""Workers and supervisors of the service that die: readers wait or get EIO, and never anything else."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from tests.support.images.faults import (
    drop_pages,
    ensure,
    kill_supervisor,
    make_image,
    mount_here,
    mounts_below,
    start_reader,
    sums,
    umount_here,
)
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "0", "io_timeout": "20"}


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


def test_requests_while_workers_are_killed(host: Service, new_image: tuple[Path, Path]) -> None:
    """A request that is sent twice is executed once: in the end everything is as if nothing had happened."""
    source, store = new_image
    first = host.mountpoint("first")
    mount_here(host, store, first)
    client, over, chance = Client(host.settings), threading.Event(), random.Random(6)
    before = client.status()["restarts"]
    failures: list[BaseException] = []

    def kill() -> None:
        try:
            for _ in range(4):
                os.listdir(host.settings.devices)  # three deaths with no answer in between would be the end
                time.sleep(chance.random() / 2)
                os.kill(client.status()["worker_pid"], signal.SIGKILL)
        finally:
            over.set()

    def use(number: int) -> None:
        target = host.mountpoint(f"mnt{number}")
        while not over.is_set():
            done = host.run("mount", f"{store}#t", str(target))
            failures.extend([] if done.returncode == 0 else [AssertionError(done.stderr)])
            failures.extend([] if sums(target) == sums(source) else [AssertionError("wrong bytes")])
            done = host.run("umount", str(target))
            failures.extend([] if done.returncode == 0 else [AssertionError(done.stderr)])

    killer = threading.Thread(target=kill)
    users = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in (killer, *users):
        thread.start()
    for thread in (*users, killer):
        thread.join(100)
    assert failures == []
    eventually(lambda: len(client.status()["images"]) == 1, "the uses to end")
    status = client.status()
    assert status["restarts"] - before == 4
    assert status["images"][0]["mountpoint"] == str(first)
    assert mounts_below(host) == sorted([str(first), host.settings.devices])
    umount_here(host, first)


def test_hup_replaces_the_worker_as_often_as_one_likes(host: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    target = host.mountpoint()
    mount_here(host, store, target, rw=True)
    (target / "new").write_text("new")
    client = Client(host.settings)
    for _ in range(4):
        status = client.status()
        os.kill(status["supervisor_pid"], signal.SIGHUP)
        eventually(lambda then=status["restarts"]: client.status()["restarts"] > then, "the next worker")  # type: ignore[misc]
    (target / "new").unlink()
    assert sums(target) == sums(source)
    umount_here(host, target)


def test_a_worker_finds_its_index_gone(service: Service, image: tuple[Path, Path], tmp_path: Path) -> None:
    """It is fetched anew; and while the store is away too, readers of that image alone wait, and get EIO."""
    source, store = image
    elsewhere, other = make_image(tmp_path / "other", seed=2)
    service.environment["IMAGEFS_IO_TIMEOUT"] = "2"
    first, second = service.mountpoint("first"), service.mountpoint("second")
    ensure(service)
    mount_here(service, store, first)
    mount_here(service, other, second)
    status = service.status()
    index = status["images"][1]["devices"][0]["index"]
    (Path(service.settings.cache) / "indexes" / index).unlink()
    other.rename(tmp_path / "away")
    os.kill(status["worker_pid"], signal.SIGKILL)
    assert sums(first) == sums(source)
    with pytest.raises(OSError, match="Input/output error"):
        (second / "large").read_bytes()
    assert [image["mountpoint"] for image in service.status()["images"]] == [str(first), str(second)]
    (tmp_path / "away").rename(other)
    assert sums(second) == sums(elsewhere)
    for target in (first, second):
        umount_here(service, target)


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
