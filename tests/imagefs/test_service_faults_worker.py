"""Workers and supervisors of the service that die: readers wait or get EIO, and never anything else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from stripefs.mount import kernel
from tests.imagefs.faults import make_image, mounts_below, status_of, sums
from tests.imagefs.service import Service, eventually

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


_READER = """
import hashlib, os, sys
for name in sorted(os.listdir(sys.argv[1]), reverse=len(sys.argv) > 2):
    with open(os.path.join(sys.argv[1], name), 'rb') as file:
        print(name, hashlib.file_digest(file, 'sha256').hexdigest(), flush=True)
"""


def start_reader(target: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _READER, str(target), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_workers_killed_at_random_moments(service: Service, image: tuple[Path, Path]) -> None:
    """Two readers of a slow store; each worker answers something before it goes."""
    source, store = image
    target = service.mountpoint()
    service.ok("mount", f"throttled+file://{store}?rate=1MB/s&hosts=1#t", str(target))
    client = Client(service.settings)
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
    assert status["restarts"] == kills >= 3
    (mounted,) = status["images"]
    assert mounted["unrecorded"] == "its worker was replaced"
    assert [device["handles"] for device in mounted["devices"]] == [1]
    service.ok("umount", str(target))
    eventually(lambda: client.status()["blocks"]["devices"] == [], "the device to be closed")


def test_requests_while_workers_are_killed(service: Service, image: tuple[Path, Path]) -> None:
    """Whatever is asked twice happens once: in the end everything is as if nothing had happened."""
    source, store = image
    first = service.mountpoint("first")
    service.ok("mount", f"{store}#t", str(first))
    client, over, chance = Client(service.settings), threading.Event(), random.Random(6)
    failures: list[BaseException] = []

    def kill() -> None:
        try:
            for _ in range(4):
                os.listdir(service.settings.devices)  # three deaths with no answer in between would be the end
                time.sleep(chance.random() / 2)
                os.kill(client.status()["worker_pid"], signal.SIGKILL)
        finally:
            over.set()

    def use(number: int) -> None:
        target = service.mountpoint(f"mnt{number}")
        while not over.is_set():
            done = service.run("mount", f"{store}#t", str(target))
            failures.extend([] if done.returncode == 0 else [AssertionError(done.stderr)])
            failures.extend([] if sums(target) == sums(source) else [AssertionError("wrong bytes")])
            done = service.run("umount", str(target))
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
    assert status["restarts"] == 4
    assert status["images"][0]["mountpoint"] == str(first)
    assert mounts_below(service) == sorted([str(first), service.settings.devices])


def drop_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_request_is_told_from_one_that_was_asked_before(service: Service, image: tuple[Path, Path]) -> None:
    _, store = image
    service.ok("mount", f"{store}#t", str(service.mountpoint()))
    client = Client(service.settings)
    request = {
        "store": {"url": str(store)},
        "image": "t",
        "owner": 0,
        "owner_began": 0,
        "mountpoint": "",
        "namespace": 0,
        "timeout": 0,
        "recording": {"workload": "w", "seconds": 0, "ready_file": "", "off": False},
    }
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client._ask("attach", 30, id="x" * 32, **request)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert all(answer == answers[0] for answer in answers)
    assert len(client.status()["images"]) == 2
    for _ in range(2):
        client.detach("x" * 32)
    assert len(client.status()["images"]) == 1
    service.kill_worker()
    assert len(client.status()["images"]) == 1


def test_hup_replaces_the_worker_as_often_as_one_likes(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    target = service.mountpoint()
    service.ok("mount", "--rw", f"{store}#t", str(target))
    (target / "new").write_text("new")
    client = Client(service.settings)
    supervisor = client.status()["supervisor_pid"]
    for number in range(1, 5):
        os.kill(supervisor, signal.SIGHUP)
        eventually(lambda number=number: client.status()["restarts"] == number, "the next worker")  # type: ignore[misc]
    (target / "new").unlink()
    assert sums(target) == sums(source)
    service.ok("umount", str(target))


def test_a_worker_finds_its_index_gone(service: Service, image: tuple[Path, Path], tmp_path: Path) -> None:
    """It is fetched anew; and while the store is away too, readers of that image alone wait, and get EIO."""
    source, store = image
    elsewhere, other = make_image(tmp_path / "other", seed=2)
    service.environment["IMAGEFS_IO_TIMEOUT"] = "2"
    first, second = service.mountpoint("first"), service.mountpoint("second")
    service.ok("mount", f"{store}#t", str(first))
    service.ok("mount", f"{other}#t", str(second))
    status = status_of(service)
    index = status["images"][1]["devices"][0]["index"]
    (Path(service.settings.cache) / "indexes" / index).unlink()
    other.rename(tmp_path / "away")
    os.kill(status["worker_pid"], signal.SIGKILL)
    assert sums(first) == sums(source)
    with pytest.raises(OSError, match="Input/output error"):
        (second / "large").read_bytes()
    assert [image["mountpoint"] for image in status_of(service)["images"]] == [str(first), str(second)]
    (tmp_path / "away").rename(other)
    assert sums(second) == sums(elsewhere)
    for target in (first, second):
        service.ok("umount", str(target))


def kill_supervisor(service: Service) -> None:
    os.kill(status_of(service)["supervisor_pid"], signal.SIGKILL)
    eventually(lambda: not service.answers(), "the end of the daemon")


def test_a_daemon_that_dies_under_all_kinds_of_mounts(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    plain, writable, tree = (service.mountpoint(name) for name in ("plain", "writable", "tree"))
    service.ok("mount", f"{store}#t", str(plain))
    service.ok("mount", "--rw", f"{store}#t", str(writable))
    service.ok("mount", "--plane", "tree", f"{store}#t", str(tree))
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
        service.ok("umount", str(target))
    assert mounts_below(service) == [service.settings.devices]
    assert os.listdir(Path(service.settings.cache, "upper")) == []


def test_what_is_here_as_a_whole_needs_no_daemon(service: Service, image: tuple[Path, Path]) -> None:
    source, store = image
    service.environment["IMAGEFS_BACKGROUND_RATE"] = "1GB/s"
    first, second = service.mountpoint("first"), service.mountpoint("second")
    service.ok("mount", "--no-record", f"{store}#t", str(first))
    service.ok("ready", str(first))
    eventually(lambda: status_of(service)["images"][0]["devices"][0]["complete"], "the whole image")
    service.ok("mount", "--rw", f"{store}#t", str(second))
    assert "here already" in status_of(service)["images"][1]["unrecorded"]
    kill_supervisor(service)
    drop_pages(second / "large")
    assert sums(second) == sums(source)
    (second / "large").write_bytes(b"mine")
    service.ok("mount", f"{store}#t", str(service.mountpoint("third")))  # starts a daemon, which leaves that alone
    eventually(lambda: status_of(service)["images"], "the daemon")
    assert (second / "large").read_bytes() == b"mine"
    for name in ("first", "second", "third"):
        service.ok("umount", str(service.folder / name))
    assert os.listdir(Path(service.settings.cache, "upper")) == []


def test_a_worker_that_hangs_keeps_nobody_from_asking(service: Service, image: tuple[Path, Path]) -> None:
    """A stopped worker answers nothing, so what must not depend on it does not."""
    _, store = image
    target = service.mountpoint()
    service.ok("mount", f"{store}#t", str(target))
    worker = service.worker()
    os.kill(worker, signal.SIGSTOP)
    try:
        asking = service.start("status")
        time.sleep(0.5)
        assert asking.poll() is None
        done = service.run("mount", f"{store}#t", str(target))
        assert "is a mountpoint already" in done.stderr
        assert service.answers()
    finally:
        os.kill(worker, signal.SIGCONT)
    eventually(lambda: kernel.find_mount(str(target)) is not None and status_of(service), "an answer")
    service.ok("umount", str(target))
