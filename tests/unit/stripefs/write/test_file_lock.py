"""One writer a file: who holds it, who may take it over, by the store's clock alone."""

import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stripefs.errors import Busy, Exists, NotADirectory, NotFound, QuotaExceeded, ServiceDown
from stripefs.format.lock_and_record import LEASE, LockDocument
from stripefs.store.local import LocalStore
from stripefs.testing.faults import FaultyStore
from stripefs.write import DraftLost
from stripefs.write.file_lock import acquire, lock_path
from tests.unit.stripefs.write.locks import age, names


@pytest.fixture
def store(tmp_path):
    return LocalStore(str(tmp_path).encode())


def test_taken_and_released(store, tmp_path):
    held = acquire(store, b"/file", ["0" * 16])
    document = LockDocument.from_bytes(bytes(store.get(lock_path(b"/file"))))
    assert (document.path, document.versions, held.path) == (b"/file", ("0" * 16,), b"/file")
    with pytest.raises(Busy, match=str(os.getpid())):
        acquire(store, b"/file")
    held.assert_held()
    held.release()
    held.release()
    assert not names(tmp_path)
    acquire(store, b"/file").release()


def test_needs_a_directory(store, tmp_path):
    (tmp_path / "plain").touch()
    with pytest.raises(NotFound):
        acquire(store, b"/none/file")
    with pytest.raises((NotADirectory, NotFound)):
        acquire(store, b"/plain/file")
    assert names(tmp_path) == {"plain"}


class HeldUp(LocalStore):
    """Its replacing or removing of a lock is held up once, while `meanwhile` is called."""

    def __init__(self, folder, meanwhile):
        super().__init__(folder)
        self.meanwhile = meanwhile

    def _hold(self, *paths):
        if lock_path(b"/file") in paths and self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()

    def remove(self, path):
        self._hold(path)
        super().remove(path)

    def put(self, path, data, *, replace=False, parents=True):
        if replace:
            self._hold(path)
        return super().put(path, data, replace=replace, parents=parents)

    def rename(self, source, target, *, replace=False):
        self._hold(source)
        super().rename(source, target, replace=replace)

    def compare_and_rename(self, source, target, seen):
        self._hold(target)
        super().compare_and_rename(source, target, seen)

    def compare_and_remove(self, path, seen):
        self._hold(path)
        super().compare_and_remove(path, seen)


@pytest.mark.parametrize("call", ["take", "release", "add"])
def test_what_comes_late_takes_nobodys_lock_away(store, tmp_path, call):
    """A writer that finds no lock would not know of one that may be about to publish."""
    taken = []

    def take_over():
        age(tmp_path, LEASE + 1)
        taken.append(acquire(store, b"/file", owner="next"))

    late = HeldUp(bytes(tmp_path), take_over)
    held = acquire(store if call == "take" else late, b"/file", owner="first")
    if call == "take":
        age(tmp_path, LEASE + 1)
        with pytest.raises(Busy):
            acquire(late, b"/file", owner="late")
    elif call == "add":
        with pytest.raises(DraftLost):
            held.add_version("1" * 16)
    else:
        held.release()
    assert late.meanwhile is None
    taken[0].check()
    with pytest.raises(Busy):
        acquire(store, b"/file", owner="other")
    assert names(tmp_path) == {".file.stripefs-lock"}


def test_there_is_always_a_lock_while_one_takes_the_place_of_another(store, tmp_path):
    """A writer that came in a moment without one would have nobody to fence."""
    acquire(store, b"/file")
    age(tmp_path, LEASE + 1)

    class Watched(LocalStore):
        changes = 0

        def _look(self):
            self.changes += 1
            with pytest.raises(Exists):
                store.put(lock_path(b"/file"), [b"another"])

        def rename(self, source, target, *, replace=False):
            super().rename(source, target, replace=replace)
            self._look()

        def compare_and_rename(self, source, target, seen):
            super().compare_and_rename(source, target, seen)
            self._look()

    watched = Watched(bytes(tmp_path))
    acquire(watched, b"/file").check()
    assert watched.changes


def test_a_lock_is_let_go_though_the_answer_to_its_renewal_was_lost(tmp_path):
    class Lossy(LocalStore):
        def set_attributes(self, path, attributes):
            super().set_attributes(path, attributes)
            raise ServiceDown("the answer was lost")

    store = Lossy(bytes(tmp_path))
    held = acquire(store, b"/file")
    with pytest.raises(ServiceDown):
        held.renew()
    held.release()
    assert not names(tmp_path)


def test_a_file_that_says_it_is_ones_lock_and_was_put_by_nobody_now_is_not(store, tmp_path):
    """A request to put it that came when the lock had been taken over and let go."""
    held = acquire(store, b"/file", owner="m/1")
    late = bytes(store.get(lock_path(b"/file")))
    age(tmp_path, LEASE + 1)
    with (tmp_path / ".file.stripefs-lock").open("rb"):  # so that no other file gets its number
        acquire(store, b"/file").release()
        store.put(lock_path(b"/file"), [late])
        with pytest.raises(DraftLost):
            held.check()


def test_renewing_writes_and_reads_nothing_that_lies_on_a_data_host(tmp_path):
    class Silent(LocalStore):
        """Its data hosts; empty files need none."""

        down = False

        def put(self, path, data, *, replace=False, parents=True):
            pieces = list(data)
            assert not (self.down and b"".join(pieces))
            return super().put(path, pieces, replace=replace, parents=parents)

        def open(self, path, expect=None):
            assert not self.down
            return super().open(path, expect)

    store = Silent(bytes(tmp_path))
    held = acquire(store, b"/file")
    store.down = True
    for _ in range(3):
        before = os.stat(tmp_path / ".file.stripefs-lock").st_mtime_ns
        time.sleep(0.01)
        held.renew()
        held.check()
        assert os.stat(tmp_path / ".file.stripefs-lock").st_mtime_ns > before
    assert names(tmp_path) == {".file.stripefs-lock"}
    held.release()


class Full(LocalStore):
    """A directory whose quota of names is used up."""

    def put(self, path, data, *, replace=False, parents=True):
        raise QuotaExceeded("no name is left")


def test_renewing_needs_no_name(store, tmp_path):
    now = [1000.0]
    held = acquire(store, b"/file", clock=lambda: now[0])
    held._store = Full(bytes(tmp_path))
    taken_ns = held.status.mtime_ns
    for seconds in (20.0, 40.0, 100.0):
        now[0] = 1000.0 + seconds
        held.renew()
        assert held.left == pytest.approx(0.9 * LEASE)
        assert store.stat(lock_path(b"/file")).mtime_ns == taken_ns + int(seconds * 1e9)
        held.assert_held()
    assert names(tmp_path) == {".file.stripefs-lock"}


def test_a_lock_that_a_try_before_has_taken_is_renewed(store, tmp_path):
    """The store gave it its time when the answer was lost, not when it was asked for again."""
    now = [1000.0]
    faulty = FaultyStore(store)
    faulty.fail_at(1, "put", kind="service", after=True)
    with pytest.raises(ServiceDown):
        acquire(faulty, b"/file", owner="m/1", clock=lambda: now[0])
    age(tmp_path, LEASE + 1)
    held = acquire(faulty, b"/file", owner="m/1", clock=lambda: now[0])
    assert held.left == pytest.approx(0.9 * LEASE)
    with pytest.raises(Busy):
        acquire(store, b"/file")
    held.assert_held()


def test_further_versions_leave_nothing_to_be_read(tmp_path):
    class Blind(LocalStore):
        blind = False

        def open(self, path, expect=None):
            assert not self.blind
            return super().open(path, expect)

    store = Blind(bytes(tmp_path))
    held = acquire(store, b"/file")
    held.add_version("1" * 16)
    store.blind = True
    held.check()
    held.renew()
    held.assert_held()


def test_renewing_where_times_cannot_be_set(store, tmp_path):
    store.capabilities = dataclasses.replace(store.capabilities, attributes=False)
    held = acquire(store, b"/file")
    age(tmp_path, LEASE + 1)
    held.renew()
    with pytest.raises(Busy):
        acquire(store, b"/file")
    held.check()


def test_a_writer_that_is_held_up_while_it_renews_does_not_take_anothers_lock_for_its_own(tmp_path):
    class Held(LocalStore):
        taken = None

        def set_attributes(self, path, attributes):
            age(tmp_path, LEASE + 1)
            late._reading = dataclasses.replace(late._reading, at=late._reading.at - LEASE - 1)
            self.taken = acquire(LocalStore(bytes(tmp_path)), b"/file")
            super().set_attributes(path, attributes)

    store = Held(bytes(tmp_path))
    late = acquire(store, b"/file")
    with pytest.raises(DraftLost):
        late.renew()
    with pytest.raises(DraftLost):
        late.check()
    store.taken.check()


@pytest.mark.parametrize("left", [b"", b"rubbish"])
def test_a_lock_that_cannot_be_read_runs_out_too(store, tmp_path, left):
    store.put(lock_path(b"/file"), [left])
    with pytest.raises(Busy):
        acquire(store, b"/file")
    age(tmp_path, LEASE + 1)
    acquire(store, b"/file").check()


def test_only_one_takes_over(store, tmp_path):
    for number in range(10):
        path = b"/file%d" % number
        acquire(store, path)
        age(tmp_path, LEASE + 1, f".file{number}.stripefs-lock")

        def attempt(_, path=path):
            try:
                return acquire(store, path)
            except Busy:
                return None

        with ThreadPoolExecutor(8) as threads:
            held = [one for one in threads.map(attempt, range(8)) if one is not None]
        alive = []
        for one in held:
            try:
                one.check()
            except DraftLost:
                continue
            alive.append(one)
        assert len(alive) <= 1
        assert held
    assert not [name for name in names(tmp_path) if "lock" not in name]


class Overtaken(LocalStore):
    """A store in which another lock takes the place of one when that is looked at for the `at`-th time."""

    def __init__(self, folder, at):
        super().__init__(folder)
        self.other = LocalStore(folder)
        self.left = at

    def stat(self, path):
        if path == lock_path(b"/file"):
            self.left -= 1
            if not self.left:
                self.other.remove(path)
                acquire(self.other, b"/file", owner="other")
        return super().stat(path)


@pytest.mark.parametrize(("contended", "at"), [(False, 1), (True, 2), (True, 3)])
def test_another_that_took_its_place_at_once_is_not_taken_for_ones_own(store, tmp_path, contended, at):
    if contended:
        acquire(store, b"/file")
        age(tmp_path, LEASE + 1)
    overtaken = Overtaken(str(tmp_path).encode(), at)
    with pytest.raises((Busy, DraftLost)):
        acquire(overtaken, b"/file").check()
    assert overtaken.left <= 0
    assert b'"other"' in bytes(store.get(lock_path(b"/file")))


def test_the_next_worker_of_a_mount_takes_over_where_no_name_is_left(tmp_path):
    class OneName(LocalStore):
        def put(self, path, data, *, replace=False, parents=True):
            if names(tmp_path) and not (tmp_path / os.fsdecode(path[1:])).exists():
                raise QuotaExceeded("no name is left")
            return super().put(path, data, replace=replace, parents=parents)

    store = OneName(bytes(tmp_path))
    acquire(store, b"/file", owner="mount/1")
    acquire(store, b"/file", owner="mount/2").check()
    assert names(tmp_path) == {".file.stripefs-lock"}


@pytest.mark.parametrize("after", [False, True])
def test_an_answer_that_got_lost(store, after):
    faulty = FaultyStore(store)
    faulty.fail_at(1, "put", kind="service", after=after)
    with pytest.raises(ServiceDown):
        acquire(faulty, b"/file", owner="m/1")
    held = acquire(faulty, b"/file", owner="m/1")
    faulty.fail_at(1, "remove", kind="service", after=after)
    with pytest.raises(ServiceDown):
        held.release()
    held.release()
    acquire(store, b"/file").release()
