"""gc and a writer that it takes for dead, each of which may be stopped at any moment, for any time."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.errors import NotEmpty, NotFound, StoreError
from stripefs.format.lock_and_record import LEASE
from stripefs.format.manifest import Manifest, Segment
from stripefs.gc.collect import Collection, clear_for_rmdir
from stripefs.store.striped import StripedStore
from stripefs.write import store_ops
from stripefs.write.file_lock import FileLock, acquire
from tests.support.leftovers import Hooked, Place, version
from tests.support.striped_files import write_marked
from tests.unit.stripefs.gc.conftest import OLD

DATA = b"x" * 3 * 4096
OURS, THEIRS = version(1), version(2)
CALLS = 200
"""More than a collection of so few things makes."""

STRIDE = 6
"""Each case tries every few calls, beginning with another one."""


class Sleeper:
    """A writer of a striped file whose parts are old; its manifest is there but for its name."""

    def __init__(self, place: Place, locked: float) -> None:
        self.place = place
        self.lock: FileLock = acquire(place.store, b"/d/model", [OURS], "mount/1")
        self.source = f"/d/.model.stripefs-{OURS}-0".encode()
        parts = place.parts(OURS, DATA, 3, OLD)
        manifest = Manifest(OURS, 0, 4096, place.view.pool, (Segment(len(DATA), parts),))
        write_marked(place.store, self.source, manifest.to_bytes())
        place.age("d", locked)

    def wake(self) -> bool:
        """Renew and publish; whether `close` succeeds."""
        try:
            self.lock.renew()
            self.lock.assert_held()
        except StoreError:
            return False
        published = self.step()
        self.lock.release()
        return published

    def step(self) -> bool:
        """The step before which it was stopped, after it had compared its lock."""
        try:
            self.place.store.rename(self.source, b"/d/model", replace=True)
        except NotFound:
            return False
        return True


def stopped_at(place: Place, number: int, then: Callable[[], None]) -> Hooked:
    """A store whose user is stopped before its `number`-th call, while others do `then`."""
    calls = itertools.count()

    def before(call: str, path: bytes) -> None:
        if next(calls) == number:
            then()

    return Hooked(place.store, before)


CASES = list(itertools.product(("wake", "step"), (LEASE + 5, 3 * LEASE, OLD), (False, True), (False, True)))


@pytest.mark.parametrize(("case", "how", "locked", "force", "rubbish"), [(i, *each) for i, each in enumerate(CASES)])
def test_what_a_writer_publishes_that_was_asleep_is_whole(
    tmp_path: Path, case: int, how: str, locked: float, force: bool, rubbish: bool
) -> None:
    """Whenever it wakes up while gc runs, or after that."""
    published = []
    for number in (0, *range(1 + case % STRIDE, CALLS, STRIDE)):
        place = Place(tmp_path / str(number))
        (place.root / "d").mkdir()
        if rubbish:
            place.hidden("d", "model", f"{THEIRS}-0", OLD)
        writer = Sleeper(place, locked)
        done: list[bool] = []
        store = stopped_at(place, number, lambda done=done, writer=writer: done.append(getattr(writer, how)()))
        found = Collection(store, StripedStore(store), force=force).run()
        late = not done
        if late:
            done.append(getattr(writer, how)())
        if done[0]:
            assert bytes(StripedStore(place.store).get(b"/d/model")) == DATA, (number, found)
        published.append(done[0])
        place.close()
        if late:
            break
    assert late
    assert published[0]  # before gc has looked at anything
    assert locked < OLD or not published[-1]


def test_another_writer_comes_while_gc_is_stopped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """gc has the lock and sleeps for two leases: what came since is not its own to remove."""
    moved = [0.0]
    boot_time = store_ops.boot_time
    for number in range(CALLS):
        root = place.root / str(number)
        here = Place(root)
        (root / "d").mkdir()
        for part in range(3):
            here.hidden("d", "model", f"{THEIRS}-{part}", OLD)
        monkeypatch.setattr("stripefs.write.file_lock.boot_time", boot_time)
        locks: list[FileLock] = []

        def sleep(root: Path = root, here: Place = here, locks: list[FileLock] = locks) -> None:
            moved[0] += 2 * LEASE
            lock = root / "d/.model.stripefs-lock"
            if lock.exists():
                then = lock.stat().st_mtime - 3 * LEASE
                os.utime(lock, (then, then))
            locks.append(acquire(here.store, b"/d/model", [OURS], "mount/1"))
            here.hidden("d", "model", f"{OURS}-0", 0)

        store = stopped_at(here, number, sleep)
        monkeypatch.setattr("time.clock_gettime", lambda _clock, began=moved[0]: moved[0] - began)
        Collection(store, StripedStore(store), force=True).run()
        if not locks:
            break
        locks[0].assert_held()
        assert f"d/.model.stripefs-{OURS}-0" in here.everything()
        here.close()
    assert not locks


def test_a_lock_lasts_as_long_as_there_is_something_to_remove(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removal takes a sixth of a lease, all of them three leases."""
    moved, clock = [0.0], time.clock_gettime
    monkeypatch.setattr("time.clock_gettime", lambda which: clock(which) + moved[0])
    (place.root / "d").mkdir()
    for part in range(18):
        place.hidden("d", "model", f"{THEIRS}-{part}", OLD)

    def before(call: str, _path: bytes) -> None:
        moved[0] += LEASE / 6 if call == "remove" else 0.0

    store = Hooked(place.store, before)
    found = Collection(store, StripedStore(store), force=True).run()
    assert found.trouble == []
    assert moved[0] >= 3 * LEASE
    assert place.everything() == set()


def test_clearing_a_directory_is_fenced_too(place: Place) -> None:
    """A writer that was stopped after it had compared its lock finds nothing to publish, or the directory stays."""
    for number in range(CALLS):
        here = Place(place.root / str(number))
        (here.root / "d").mkdir()
        writer = Sleeper(here, 3 * LEASE)
        done: list[bool] = []
        store = stopped_at(here, number, lambda done=done, writer=writer: done.append(writer.step()))
        try:
            clear_for_rmdir(store, StripedStore(store), b"/d")
            here.store.rmdir(b"/d")
        except NotEmpty:
            assert done == [True]
            assert bytes(StripedStore(here.store).get(b"/d/model")) == DATA
        else:
            assert done in ([False], [])
        here.close()
        if not done:
            break
    assert not done
