"""The leader when several miss one snapshot: one at a time, never for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.format.documents import key_digest
from imagefs.repository import snapshot_lease
from imagefs.repository.snapshot_lease import (
    LEASE,
    InstallLease,
    LeaseTimeout,
    NotPublished,
    RenewedLock,
    acquire,
    acquire_or_wait,
    pause,
)
from imagefs.repository.snapshots import Snapshots
from stripefs.errors import Busy, StoreError
from stripefs.settings import StoreSettings
from stripefs.store.base import Capabilities
from stripefs.store.local import LocalStore
from tests.support.images.stores import images_in
from tests.unit.imagefs.repository.test_snapshots import snapshot_of

KEY = {"salt": "x"}
NAME = key_digest(KEY)


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(images_in(tmp_path / "store"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, least in (("LOOK", 0.01), ("TRY", 0.05)):
        monkeypatch.setattr(snapshot_lease, f"_{name}_LEAST", least)
        monkeypatch.setattr(snapshot_lease, f"_{name}_MOST", least)


@pytest.fixture
def first(snapshots: Snapshots) -> Iterator[RenewedLock]:
    found = acquire(snapshots, NAME)
    yield found
    found.release()


def publish(snapshots: Snapshots, folder: Path) -> None:
    snapshots.put(snapshot_of(snapshots.images, folder, KEY))


def make_old(store: Path) -> None:
    """The lock, as if nothing had been heard of its holder for longer than a lease."""
    (lock,) = (store / "deps").glob(".*lock")
    os.utime(lock, (time.time() - LEASE - 1, time.time() - LEASE - 1))


def test_signals_are_for_the_main_thread(snapshots: Snapshots, tmp_path: Path) -> None:
    """The main thread may be waiting for them, with a container to pass them on to."""
    before = set(os.listdir("/proc/self/task"))
    with InstallLease(StoreSettings(url=str(tmp_path / "store")), NAME, 1.0, lambda _: None) as lease:
        assert lease.may_publish
        (thread,) = set(os.listdir("/proc/self/task")) - before
        status = Path("/proc/self/task", thread, "status").read_text()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD))
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_others_wait_for_what_is_published(snapshots: Snapshots, first: RenewedLock, tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(LeaseTimeout):
        acquire_or_wait(snapshots, NAME, 0.0, told.append)
    assert not told  # nothing can be mounted here, so nobody is told to wait
    timer = threading.Timer(0.2, publish, (snapshots, tmp_path / "source"))
    timer.start()
    assert acquire_or_wait(snapshots, NAME, 10.0, told.append) is None
    timer.join()
    assert len(told) == 1


def test_who_waits_takes_the_lead_of_one_that_died(snapshots: Snapshots, first: RenewedLock, tmp_path: Path) -> None:
    first.hand_over()
    timer = threading.Timer(0.2, make_old, (tmp_path / "store",))
    timer.start()
    second = acquire_or_wait(snapshots, NAME, 10.0, lambda who: None)
    timer.join()
    assert second is not None
    with pytest.raises(StoreError, match="was lost"):
        first.check()
    second.check()
    second.release()


def test_one_who_could_not_read_it_leads_although_it_seems_whole(snapshots: Snapshots, tmp_path: Path) -> None:
    publish(snapshots, tmp_path / "tree")
    found = acquire_or_wait(snapshots, NAME, 10.0, lambda _who: None, damaged=True)
    assert found is not None
    assert acquire_or_wait(snapshots, NAME, 10.0, lambda _who: None, damaged=True) is None
    found.release()


def test_nobody_waits_for_what_will_not_be_published(snapshots: Snapshots, first: RenewedLock) -> None:
    told: list[str] = []
    timer = threading.Timer(0.2, snapshots.note_unpublished, (NAME, "it holds\na secret"))
    timer.start()
    with pytest.raises(NotPublished, match="it holds a secret"):
        acquire_or_wait(snapshots, NAME, 10.0, told.append)
    timer.join()
    assert len(told) == 1
    with pytest.raises(NotPublished):
        acquire_or_wait(snapshots, NAME, 10.0, told.append)
    assert len(told) == 1
    first.release()
    second = acquire_or_wait(snapshots, NAME, 10.0, told.append)  # the leader may publish all the same
    assert second is not None
    second.release()


def lease_of(tmp_path: Path, patience: float = 10.0) -> InstallLease:
    return InstallLease(StoreSettings(url=str(tmp_path / "store")), NAME, patience, lambda who: None)


def test_the_place_of_a_host(snapshots: Snapshots, tmp_path: Path) -> None:
    with lease_of(tmp_path) as lease:
        assert (lease.may_publish, lease.published, lease.remark) == (True, False, "")
        with lease_of(tmp_path, 0.1) as waits:
            assert (waits.may_publish, waits.published) == (False, False)
            assert "did not publish it within 0.1 s" in waits.remark
    with lease_of(tmp_path) as lease:
        assert lease.may_publish  # the one before let it go
        owner = lease.hand_over()
    with pytest.raises(Busy):
        acquire(snapshots, NAME)
    acquire(snapshots, NAME, owner).release()
    publish(snapshots, tmp_path / "source")
    with lease_of(tmp_path) as lease:
        assert (lease.may_publish, lease.published) == (False, True)
    acquire(snapshots, NAME).release()  # and it was let go again


def test_a_leader_that_gives_up_says_why(snapshots: Snapshots, tmp_path: Path) -> None:
    with lease_of(tmp_path) as lease:
        lease.give_up("the installer ended with status 1")
        assert snapshots.unpublished_reason(NAME) == ""
    with lease_of(tmp_path), lease_of(tmp_path) as other:
        assert (other.may_publish, other.published) == (False, False)
        assert "was not published by who installed it: the installer ended with status 1" in other.remark
    publish(snapshots, tmp_path / "source")
    assert snapshots.unpublished_reason(NAME) == ""


def test_stores_without_locks_and_stores_that_take_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "capabilities", Capabilities(put=True))
    with lease_of(tmp_path) as place:
        assert (place.may_publish, place.hand_over()) == (True, "")
    monkeypatch.setattr(LocalStore, "capabilities", Capabilities())
    with lease_of(tmp_path) as place:
        assert not place.may_publish
        assert "takes none" in place.remark


def test_a_store_that_is_away(tmp_path: Path) -> None:
    with InstallLease(StoreSettings(url="http://127.0.0.1:1/store"), NAME, 1.0, lambda who: None) as place:
        assert not place.may_publish
        assert place.remark


def test_a_pause_is_a_part_of_the_time_that_was_waited() -> None:
    for waited in (0.0, 1.0, 10.0, 100.0, 1e6):
        pauses = [pause(waited, 0.5, 5.0) for _ in range(100)]
        middle = min(max(0.5, waited / 8), 5.0)
        assert 0.5 * middle <= min(pauses) < max(pauses) <= 1.5 * middle
