"""Writers of a file and of the files below a directory, told from their locks."""

import pytest

from stripefs.errors import PermissionDenied
from stripefs.format.lock_and_record import LEASE
from stripefs.store.base import Kind, Status
from stripefs.store.local import LocalStore
from stripefs.write.file_lock import acquire, lock_path
from stripefs.write.namespace import find_writer, find_writer_below
from tests.unit.stripefs.write.locks import age, names


@pytest.fixture
def store(tmp_path):
    return LocalStore(str(tmp_path).encode())


def test_who_writes_below_a_directory(store, tmp_path):
    (tmp_path / "run" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "file").touch()
    elsewhere = acquire(store, b"/elsewhere/file")
    assert find_writer_below(store, b"/run") == ""
    held = acquire(store, b"/run/deep/er/file", ["1" * 16], "mount/1")
    for owner, versions in (("", ()), ("other", ()), ("mount", {"1" * 16})):
        assert f"b'/run/deep/er/file' is being written by {held.document.where}" == find_writer_below(
            store, b"/run", owner, frozenset(versions)
        )
    assert find_writer_below(store, b"/run", "mount", frozenset({"2" * 16})) == ""  # a dead worker of the one that asks
    age(tmp_path / "run/deep/er", LEASE + 5)
    assert find_writer_below(store, b"/run") == ""
    held.renew()
    assert find_writer_below(store, b"/run")
    held.release()
    assert find_writer_below(store, b"/run") == ""
    assert names(tmp_path / "run") == {"deep", "file"}
    elsewhere.release()


def test_all_names_below_a_directory_are_looked_at(store, tmp_path, monkeypatch):
    """Also behind more of them than one would like to list."""
    (tmp_path / "run" / "deep").mkdir(parents=True)
    held = acquire(store, b"/run/deep/file")
    scandir = store.scandir

    def crowded(path, after=b""):
        if path == b"/run":
            for begin in range(0, 20_000, 1000):
                yield [Status(b"%d" % number, Kind.FILE, 0, 0) for number in range(begin, begin + 1000)]
        yield from scandir(path, after)

    monkeypatch.setattr(store, "scandir", crowded)
    assert find_writer_below(store, b"/run")
    held.release()
    assert find_writer_below(store, b"/run") == ""


def test_who_writes_a_file(store, tmp_path):
    (tmp_path / "run").mkdir()
    for path in (b"/run/file", b"/none/file"):
        assert find_writer(store, path) == ""
    held = acquire(store, b"/run/file", ["1" * 16], "mount/1")
    for owner, versions in (("", ()), ("other", ()), ("mount", {"1" * 16})):
        who = find_writer(store, b"/run/file", owner, frozenset(versions))
        assert who == f"b'/run/file' is being written by {held.document.where}"
    dead_workers = frozenset({"2" * 16})  # of the mount that asks
    assert find_writer(store, b"/run/file", "mount", dead_workers) == ""
    assert find_writer(store, b"/run/other") == find_writer(store, b"/file") == ""
    age(tmp_path / "run", LEASE + 5)
    assert find_writer(store, b"/run/file") == ""
    held.renew()
    assert find_writer(store, b"/run/file")
    held.release()
    assert find_writer(store, b"/run/file") == ""
    store.put(lock_path(b"/run/file"), [b"rubbish"])
    assert "b'/run/.file.stripefs-lock' is being written by somebody whose lock" in find_writer(store, b"/run/file")
    assert names(tmp_path / "run") == {".file.stripefs-lock"}


def test_what_cannot_be_told_hinders_nobody(tmp_path):
    class Sealed(LocalStore):
        def put(self, path, data, *, replace=False, parents=True):
            raise PermissionDenied("sealed")

    (tmp_path / "run").mkdir()
    acquire(LocalStore(bytes(tmp_path)), b"/run/file")
    assert find_writer_below(Sealed(bytes(tmp_path)), b"/run") == ""
    assert find_writer(Sealed(bytes(tmp_path)), b"/run/file") == ""
    assert find_writer_below(LocalStore(bytes(tmp_path)), b"/run")
