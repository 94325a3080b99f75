"""Daemons that are killed, stopped and replaced while images are in use: who reads waits, and reads the right bytes."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.launcher import is_kept
from imagefs.daemon.protocol import Lease
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings
from tests.support.images.faults import FickleServer, ensure, mount_here, orphan, start_reader, sums, umount_here
from tests.support.refusals import errno_of
from tests.tools.imagefs_daemon import Service, eventually
from tests.tools.web_server import Fault

pytestmark = [pytest.mark.mount, pytest.mark.root]

SETTINGS = {"background_rate": "0", "io_timeout": "20"}

LEASE = Lease("1", "containerd")


class GatedServer(FickleServer):
    """Answers requests only while `gate` is set, so that a reader ends no sooner than the test wants."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()

    def __exit__(self, *error: object) -> None:
        self.gate.set()
        super().__exit__(*error)

    def next_fault(self, method: str) -> Fault | None:
        self.gate.wait()
        return super().next_fault(method)


class Held(NamedTuple):
    root: Path
    server: GatedServer


@pytest.fixture
def held(service: Service, new_image: tuple[Path, Path]) -> Iterator[Held]:
    """A lazy image that a lease holds, of which nothing was read yet, and its store."""
    ensure(service)  # with SETTINGS: nothing is fetched before it is read
    with GatedServer(new_image[1]) as server:
        yield Held(Path(Client(service.settings).hold(StoreSettings(url=server.url), "t", LEASE).lowerdir), server)


def reads_on(service: Service, held: Held, expected: dict[str, str], how: str) -> None:
    """A reader that began before the daemon ends goes on with the next one, and sees the right bytes."""
    held.server.gate.clear()
    with start_reader(held.root) as reader:
        try:
            eventually(lambda: service.status()["blocks"]["in_flight"] > 0, "the reader to wait")
            if how == "killed":
                orphan(service)
            elif how == "terminated":
                os.kill(service.status()["supervisor_pid"], signal.SIGTERM)
            else:
                assert "mounts still read through it" in service.run("daemon", "--stop").stderr
            eventually(lambda: is_kept(service.settings) and not service.answers(), "the end of the daemon")
            assert reader.poll() is None
            held.server.gate.set()
            ensure(service)
            out, _ = reader.communicate(timeout=60)
        finally:
            reader.kill()
    assert dict(line.split() for line in out.splitlines()) == expected


@pytest.mark.parametrize("how", ["terminated", "stopped"])  # killed: with a keeper that was replaced, below
def test_the_next_daemon_serves_what_was_in_use(
    service: Service, held: Held, new_image: tuple[Path, Path], how: str
) -> None:
    keepers = service.keepers()
    reads_on(service, held, sums(new_image[0]), how)
    assert service.keepers() == keepers
    client = Client(service.settings)
    assert [(one.lease, one.lowerdir) for one in client.leases()] == [(LEASE, str(held.root))]
    service.kill_worker()
    assert sums(held.root) == sums(new_image[0])
    client.release(LEASE)


def test_a_keeper_that_is_killed_is_replaced(service: Service, held: Held, new_image: tuple[Path, Path]) -> None:
    (first,) = service.keepers()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: service.keepers() not in ([], [first]), "the next keeper")
    service.kill_worker()
    keepers = service.keepers()
    reads_on(service, held, sums(new_image[0]), "killed")
    assert service.keepers() == keepers
    assert [one.lowerdir for one in Client(service.settings).leases()] == [str(held.root)]


def test_what_is_kept_can_be_ended(service: Service, held: Held) -> None:
    orphan(service)
    assert service.run("daemon", "--stop").returncode == 32
    reader = ThreadPoolExecutor(1).submit(errno_of, (held.root / "large").read_bytes)
    service.ok("daemon", "--stop", "--force")
    assert reader.result(30) == errno.EIO
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
