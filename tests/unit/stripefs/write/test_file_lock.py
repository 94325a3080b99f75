"""One writer a file: who holds it, who takes it over, who is told of it. tests/model: lost answers, interleavings."""

import os
import time

import pytest

from stripefs.errors import Busy, Exists, NotADirectory, NotFound, PermissionDenied, QuotaExceeded
from stripefs.format.lock_and_record import LEASE, LockDocument
from stripefs.store.local import LocalStore
from stripefs.store.wrapper import WrappedStore
from stripefs.write import DraftLost
from stripefs.write.file_lock import acquire, lock_path
from stripefs.write.namespace import find_writer, find_writer_below
from tests.support.uploads import age


@pytest.fixture
def store(tmp_path):
    return LocalStore(bytes(tmp_path))


def test_taken_and_released(store, tmp_path):
    held = acquire(store, b"/file", ["0" * 16])
    document = LockDocument.from_bytes(bytes(store.get(lock_path(b"/file"))))
    assert (document.path, document.versions, held.path) == (b"/file", ("0" * 16,), b"/file")
    with pytest.raises(Busy, match=str(os.getpid())):
        acquire(store, b"/file")
    held.assert_held()
    held.release()
    held.release()
    assert not os.listdir(tmp_path)
    acquire(store, b"/file").release()


def test_needs_a_directory(store, tmp_path):
    (tmp_path / "plain").touch()
    with pytest.raises(NotFound):
        acquire(store, b"/none/file")
    with pytest.raises((NotADirectory, NotFound)):
        acquire(store, b"/plain/file")
    assert set(os.listdir(tmp_path)) == {"plain"}


def test_there_is_always_a_lock_while_one_takes_the_place_of_another(store, tmp_path):
    """A writer that came in a moment without one would have nobody to fence."""
    acquire(store, b"/file")
    age(tmp_path)

    class Watched(WrappedStore):
        NAME = "watched"

        def on_change(self, call, paths, act):
            answer = act()
            with pytest.raises(Exists):
                store.put(lock_path(b"/file"), [b"another"])
            return answer

    acquire(Watched(store), b"/file").check()


def test_a_file_that_says_it_is_ones_lock_and_was_put_by_nobody_now_is_not(store, tmp_path):
    """A request to put it that came when the lock had been taken over and let go."""
    held = acquire(store, b"/file", owner="m/1")
    late = bytes(store.get(lock_path(b"/file")))
    age(tmp_path)
    with (tmp_path / ".file.stripefs-lock").open("rb"):  # so that no other file gets its number
        acquire(store, b"/file").release()
        store.put(lock_path(b"/file"), [late])
        with pytest.raises(DraftLost):
            held.check()


@pytest.mark.parametrize("further", [False, True])
def test_renewing_writes_and_reads_nothing_that_lies_on_a_data_host(tmp_path, further):
    """Nor does it when the lock was written anew for a further version."""

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
    if further:
        held.add_version("1" * 16)
    store.down = True
    for _ in range(3):
        before = os.stat(tmp_path / ".file.stripefs-lock").st_mtime_ns
        time.sleep(0.01)
        held.renew()
        held.check()
        assert os.stat(tmp_path / ".file.stripefs-lock").st_mtime_ns > before
    assert set(os.listdir(tmp_path)) == {".file.stripefs-lock"}
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
    assert set(os.listdir(tmp_path)) == {".file.stripefs-lock"}


@pytest.mark.parametrize("left", [b"", b"rubbish"])
def test_a_lock_that_cannot_be_read_runs_out_too(store, tmp_path, left):
    store.put(lock_path(b"/file"), [left])
    with pytest.raises(Busy):
        acquire(store, b"/file")
    age(tmp_path)
    acquire(store, b"/file").check()


def test_the_next_worker_of_a_mount_takes_over_where_no_name_is_left(tmp_path):
    class OneName(LocalStore):
        def put(self, path, data, *, replace=False, parents=True):
            if os.listdir(tmp_path) and not (tmp_path / os.fsdecode(path[1:])).exists():
                raise QuotaExceeded("no name is left")
            return super().put(path, data, replace=replace, parents=parents)

    store = OneName(bytes(tmp_path))
    acquire(store, b"/file", owner="mount/1")
    acquire(store, b"/file", owner="mount/2").check()
    assert set(os.listdir(tmp_path)) == {".file.stripefs-lock"}


# -- who writes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("find", "at"), [(find_writer, b"/run/deep/file"), (find_writer_below, b"/run")])
def test_who_writes_a_file_or_below_a_directory(store, tmp_path, find, at):
    (tmp_path / "run/deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/other").touch()
    elsewhere = acquire(store, b"/elsewhere/file")
    for path in (at, b"/none/file", b"/run/other"):
        assert find(store, path) == ""
    held = acquire(store, b"/run/deep/file", ["1" * 16], "mount/1")
    for owner, versions in (("", ()), ("other", ()), ("mount", {"1" * 16})):
        who = find(store, at, owner, frozenset(versions))
        assert who == f"b'/run/deep/file' is being written by {held.document.where}"
    assert find(store, at, "mount", frozenset({"2" * 16})) == ""  # a dead worker of the mount that asks
    age(tmp_path / "run/deep")
    assert find(store, at) == ""
    held.renew()
    assert find(store, at)
    held.release()
    assert find(store, at) == ""
    store.put(lock_path(b"/run/deep/file"), [b"rubbish"])
    assert "b'/run/deep/.file.stripefs-lock' is being written by somebody whose lock" in find(store, at)
    elsewhere.release()
    assert os.listdir(tmp_path / "run/deep") == [".file.stripefs-lock"]


def test_all_names_below_a_directory_are_looked_at(store, tmp_path, monkeypatch):
    """Also those of a listing's later pages."""
    for name in ("a", "deep", "z"):
        (tmp_path / "run" / name).mkdir(parents=True)
    held = acquire(store, b"/run/deep/file")
    scandir = store.scandir
    monkeypatch.setattr(
        store, "scandir", lambda path, after=b"": ([status] for page in scandir(path, after) for status in page)
    )
    assert find_writer_below(store, b"/run")
    held.release()
    assert find_writer_below(store, b"/run") == ""


def test_what_cannot_be_told_hinders_nobody(tmp_path):
    class Sealed(LocalStore):
        def put(self, path, data, *, replace=False, parents=True):
            raise PermissionDenied("sealed")

    (tmp_path / "run").mkdir()
    acquire(LocalStore(bytes(tmp_path)), b"/run/file")
    assert find_writer_below(Sealed(bytes(tmp_path)), b"/run") == ""
    assert find_writer(Sealed(bytes(tmp_path)), b"/run/file") == ""
    assert find_writer_below(LocalStore(bytes(tmp_path)), b"/run")
