"""Daemons that are killed, stopped and replaced while images are in use: who reads waits, and reads the right bytes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Lease
from imagefs.daemon.starting import is_kept
from stripefs.mount import kernel
from stripefs.settings import StoreSettings
from tests.imagefs.faults import ensure, mount_here, orphan, start_reader, sums, umount_here
from tests.imagefs.service import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

SETTINGS = {"background_rate": "0", "io_timeout": "20"}

LEASE = Lease("1", "containerd")


@pytest.fixture
def held(service: Service, new_image: tuple[Path, Path]) -> Path:
    """A lazy image that a lease holds, of which nothing was read yet."""
    store = StoreSettings(url=f"throttled+file://{new_image[1]}?rate=4MB/s&hosts=1")
    return Path(Client(service.settings).hold(store, "t", LEASE).lowerdir)


def reads_on(service: Service, held: Path, expected: dict[str, str], how: str) -> None:
    """A reader that began before the daemon ends goes on with the next one, and sees the right bytes."""
    reader = start_reader(held)
    eventually(lambda: service.status()["blocks"]["waits"] > 0, "the reader to wait")
    if how == "killed":
        orphan(service)
    elif how == "terminated":
        os.kill(service.status()["supervisor_pid"], signal.SIGTERM)
    else:
        assert "mounts still read through it" in service.run("daemon", "--stop").stderr
    eventually(lambda: is_kept(service.settings) and not service.answers(), "the end of the daemon")
    assert reader.poll() is None
    ensure(service)
    out, _ = reader.communicate(timeout=60)
    assert dict(line.split() for line in out.splitlines()) == expected


@pytest.mark.parametrize("how", ["killed", "terminated", "stopped"])
def test_the_next_daemon_serves_what_was_in_use(
    service: Service, held: Path, new_image: tuple[Path, Path], how: str
) -> None:
    keepers = service.keepers()
    reads_on(service, held, sums(new_image[0]), how)
    assert service.keepers() == keepers
    client = Client(service.settings)
    assert [(one.lease, one.lowerdir) for one in client.leases()] == [(LEASE, str(held))]
    service.kill_worker()
    assert sums(held) == sums(new_image[0])
    client.release(LEASE)


def test_a_keeper_that_is_killed_is_replaced(service: Service, held: Path, new_image: tuple[Path, Path]) -> None:
    (first,) = service.keepers()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: service.keepers() not in ([], [first]), "the next keeper")
    service.kill_worker()
    reads_on(service, held, sums(new_image[0]), "killed")


def test_what_is_kept_can_be_ended(service: Service, held: Path) -> None:
    orphan(service)
    assert service.run("daemon", "--stop").returncode == 32
    failed: list[OSError] = []

    def read() -> None:
        try:
            (held / "large").read_bytes()
        except OSError as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    service.ok("daemon", "--stop", "--force")
    reader.join(30)
    assert [one.strerror for one in failed] == ["Input/output error"]
    assert service.keepers() == []


def test_a_daemon_that_nobody_reads_through_leaves_nothing(service: Service, image: tuple[Path, Path]) -> None:
    target = service.mountpoint()
    ensure(service)
    mount_here(service, image[1], target)
    umount_here(service, target)
    service.ok("daemon", "--stop")
    eventually(lambda: not service.processes() and not service.keepers(), "the end of the daemon")
    assert kernel.find_mount(service.settings.devices) is None
    assert not list(Path(service.settings.runtime).glob("*.keeper"))
