from __future__ import annotations

import errno
import os
import re
import socket
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stripefs.errors import (
    ConfigError,
    Exists,
    NameTooLong,
    NoSpace,
    NotADirectory,
    NotFound,
    PermissionDenied,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.settings import StoreSettings
from stripefs.store import local, local_write
from stripefs.store.base import Attributes, Kind
from stripefs.store.common import InUse
from stripefs.store.local import LocalStore
from stripefs.store.url import open_store
from tests.contract.listing import ListingConformance
from tests.contract.putting import PutConformance
from tests.contract.reading import StoreConformance
from tests.contract.writing import WriteConformance
from tests.support.caches import refusing
from tests.support.populate import LocalPopulate
from tests.support.stores import ODD_NAMES, Place, content, listing


class TestLocal(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    time_step = 1
    odd_names = (*ODD_NAMES, b"new\nline", b"a:b", b"\xff\xfe", b"n" * 255)
    many = 2500

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        root = tmp_path_factory.mktemp("local")
        store = open_store(StoreSettings(url=f"file://{root}"))
        yield Place(store, LocalPopulate(root))
        store.close()


class OnPoorFileSystem(PutConformance):
    """A file system on which a file cannot be without a name, as on NFS."""

    @pytest.fixture(autouse=True)
    @staticmethod
    def poor(monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.open

        def named_only(path: str | bytes, flags: int, *args: int, **options: int) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return real(path, flags, *args, **options)

        monkeypatch.setattr(os, "open", named_only)

    @pytest.fixture
    @staticmethod
    def folder(tmp_path: Path) -> bytes:
        (tmp_path / "folder").mkdir()
        return b"/folder"


class TestWithoutNamelessFiles(OnPoorFileSystem):
    def test_a_link_that_was_made_although_it_is_said_to_have_been_there(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.link

        def told_twice(*args: bytes, **options: int) -> None:
            real(*args, **options)
            raise FileExistsError(errno.EEXIST, "File exists")

        monkeypatch.setattr(os, "link", told_twice)
        store.put(b"/file", [b"x"])
        assert os.listdir(tmp_path) == ["file"]
        assert os.stat(tmp_path / "file").st_nlink == 1

    def test_a_file_that_is_being_written_is_hidden(self, store: LocalStore, tmp_path: Path) -> None:
        def pieces() -> Iterator[bytes]:
            [name] = os.listdir(tmp_path)
            assert re.fullmatch(r"\.file\.[0-9a-f]{16}\.tmp", name)
            yield b"x"

        store.put(b"/file", pieces())
        assert os.listdir(tmp_path) == ["file"]


class TestWithoutLinks(OnPoorFileSystem):
    @pytest.fixture(autouse=True)
    @staticmethod
    def poorer(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "link", refusing(errno.EPERM))

    def test_where_names_cannot_be_kept_either(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local_write, "_renameat2", None)
        with pytest.raises(Unsupported, match="rename"):
            store.put(b"/file", [b"x"])
        assert os.listdir(tmp_path) == []
        store.put(b"/file", [b"x"], replace=True)
        assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(os.fsencode(tmp_path))
    yield store
    store.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_listing_comes_in_batches_and_skips_what_vanished(store: LocalStore, tmp_path: Path) -> None:
    for number in range(2500):
        (tmp_path / f"{number:04}").touch()
    batches = store.scandir(b"/")
    first = next(batches)
    assert 0 < len(first) < 2500
    (tmp_path / "2400").unlink()
    (tmp_path / "new").touch()
    rest = [status.name for batch in batches for status in batch]
    assert b"2400" not in rest
    assert len(first) + len(rest) == 2499


def test_an_unfinished_listing_holds_no_descriptor(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = descriptors()
    batches = store.scandir(b"/")
    next(batches)
    assert descriptors() == before + 1
    assert isinstance(batches, Generator)
    batches.close()
    assert descriptors() == before


def test_failed_calls_hold_no_descriptor(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    before = descriptors()
    for path in (b"/a/b/none", b"/a/none/c", b"/a/b/file/x", b"/a/b"):
        with pytest.raises(StoreError):
            store.open(path)
    with pytest.raises(StaleVersion):
        store.open(b"/a/b/file", store.stat(b"/a").identity)
    assert descriptors() == before


def test_links_are_shown_and_not_followed(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(b"/etc/\xff")
    status = store.stat(b"/link")
    assert (status.kind, status.length) == (Kind.SYMLINK, 6)
    assert store.readlink(b"/link") == b"/etc/\xff"
    with pytest.raises(Unsupported):
        store.open(b"/link")
    with pytest.raises(StoreError):
        store.readlink(b"/")


def test_a_link_in_the_middle_of_a_path_leads_nowhere(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    (outside / "below").mkdir(parents=True)
    (outside / "below" / "secret").touch()
    (tmp_path / "link").symlink_to(outside)
    for path in (b"/link/below", b"/link/below/secret"):
        with pytest.raises(NotADirectory):
            store.stat(path)
    with pytest.raises(NotADirectory):
        store.open(b"/link/below/secret")
    for path in (b"/link", b"/link/below"):
        with pytest.raises(NotADirectory):
            listing(store, path)


def test_special_files_are_shown_and_not_opened(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *args, **options: opened.append(path) or real(path, *args, **options))
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(tmp_path, os.O_PATH)
        listener.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
    for path in (b"/fifo", b"/socket"):
        assert store.stat(path).kind is Kind.OTHER
        with pytest.raises(Unsupported):
            store.open(path)
        assert path[1:] not in opened


def test_bytes_changed_in_place_with_the_same_length(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    os.utime(tmp_path / "file", ns=(1, 1))
    handle = store.open(b"/file")
    (tmp_path / "file").write_bytes(b"new")
    with pytest.raises(StaleVersion):
        handle.read(0, 3)
    handle.close()


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder of a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_file_in_memory_is_read_at_once(in_memory: Path) -> None:
    data = content(70_000)
    (in_memory / "file").write_bytes(data)
    with closing(LocalStore(os.fsencode(in_memory))) as store, closing(store.open(b"/file")) as handle:
        assert bytes(handle.read_now(100, 60_000) or b"") == data[100:60_100]
        assert handle.read_now(60_000, 20_000) is None  # beyond its end
        (in_memory / "file").write_bytes(data[1:])
        assert handle.read_now(100, 10) is None


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([BlockingIOError(errno.EAGAIN, "it would wait")] * 2, 2),
        ([OSError(errno.EOPNOTSUPP, "no such reads")], 1),  # and none is tried again
        ([5, 5], 2),  # the rest is not in memory
    ],
)
def test_a_file_that_would_be_waited_for_is_not_read_at_once(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[int | OSError], asked: int
) -> None:
    (tmp_path / "file").write_bytes(content(100))
    flags, whole = [], os.preadv

    def answer(descriptor: int, buffers: list[bytearray], offset: int, flag: int = 0) -> int:
        if not flag:
            return whole(descriptor, buffers, offset)
        flags.append(flag)
        found = answers[len(flags) - 1]
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(local, "_is_on_tmpfs", lambda _: False)
    monkeypatch.setattr(os, "preadv", answer)
    with closing(LocalStore(os.fsencode(tmp_path))) as on_disk, closing(on_disk.open(b"/file")) as handle:
        assert handle.read_now(0, 10) is None
        assert handle.read_now(0, 10) is None
        assert flags == [os.RWF_NOWAIT] * asked
        assert bytes(handle.read(0, 10)) == content(100)[:10]


def test_the_attributes(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content(10))
    (tmp_path / "file").chmod(0o4751)
    os.utime(tmp_path / "file", ns=(5_000_000_001, 6_000_000_002))
    os.link(tmp_path / "file", tmp_path / "other")
    status = store.stat(b"/file")
    assert (status.mode, status.links) == (0o4751, 2)
    assert (status.atime_ns, status.mtime_ns) == (5_000_000_001, 6_000_000_002)
    assert (status.owner, status.group) == (str(os.getuid()), str(os.getgid()))
    assert status.file_id == store.stat(b"/other").file_id


def test_a_root_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotFound):
        open_store(StoreSettings(url=f"{tmp_path}/nothing"))
    with pytest.raises(NotADirectory):
        open_store(StoreSettings(url=f"{tmp_path}/file"))
    with pytest.raises(ConfigError):
        open_store(StoreSettings(url="relative/path"))


def test_names_that_no_file_can_have(store: LocalStore) -> None:
    with pytest.raises(NotFound):
        store.stat(b"/nul\0byte")
    with pytest.raises(NameTooLong):
        store.stat(b"/" + b"n" * 256)


def test_a_folder_without_permission(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "open", refusing(errno.EACCES))  # root, as whom the tests may run, is refused nothing
    with pytest.raises(PermissionDenied, match="/file"):
        store.open(b"/file")


def test_release_waits_for_the_last_read_whether_it_fails_or_not() -> None:
    released: list[bool] = []
    in_use = InUse("file", lambda: released.append(True))

    def fail() -> None:
        with in_use.reading():
            in_use.close()
            raise ZeroDivisionError

    with in_use.reading():
        with pytest.raises(ZeroDivisionError):
            fail()
        with pytest.raises(StoreError, match="file"), in_use.reading():
            pass
        assert not released
    assert released == [True]
    in_use.close()
    assert released == [True]


# Writing


def test_links_are_not_followed(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"safe")
    (outside / "file").chmod(0o600)
    (tmp_path / "link").symlink_to(outside / "file")
    (tmp_path / "dangling").symlink_to(outside / "new")
    (tmp_path / "folder").symlink_to(outside)
    (tmp_path / "mine").write_bytes(b"mine")
    for name in (b"/link", b"/dangling"):
        with pytest.raises(Exists):
            store.create(name)
    with pytest.raises(Unsupported):
        store.concat(b"/link", [b"/mine"])
    with pytest.raises(Unsupported):
        store.concat(b"/mine", [b"/link"])
    for act in (
        lambda: store.create(b"/folder/new"),
        lambda: store.mkdir(b"/folder/new"),
        lambda: store.rmdir(b"/folder"),
        lambda: store.rename(b"/mine", b"/folder/new"),
        lambda: store.rename(b"/folder/file", b"/stolen"),
        lambda: store.set_attributes(b"/folder/file", Attributes(mode=0o666)),
    ):
        with pytest.raises(NotADirectory):
            act()
    store.set_attributes(b"/link", Attributes(mtime_ns=5))
    assert (os.lstat(tmp_path / "link").st_mtime_ns, (outside / "file").stat().st_mode & 0o777) == (5, 0o600)
    assert os.listdir(outside) == ["file"]
    store.rename(b"/mine", b"/link", replace=True)
    assert (tmp_path / "link").read_bytes() == b"mine"
    assert (outside / "file").read_bytes() == b"safe"


def test_permissions_are_those_that_were_asked_for(store: LocalStore, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        store.mkdir(b"/shared", 0o1775)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1775


def test_an_aborted_file_leaves_what_took_its_name(store: LocalStore, tmp_path: Path) -> None:
    sink = store.create(b"/file")
    sink.write(b"old")
    (tmp_path / "file").unlink()
    (tmp_path / "file").write_bytes(b"another's")
    sink.abort()
    assert (tmp_path / "file").read_bytes() == b"another's"


def test_nothing_stays_open(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    before = descriptors()
    for ending in ("close", "abort"):
        sink = store.create(b"/folder/" + ending.encode())
        sink.write(b"x")
        getattr(sink, ending)()
    with pytest.raises(Exists):
        store.create(b"/folder/close")
    with pytest.raises(StoreError):
        store.concat(b"/folder/close", [b"/folder/none"])
    with pytest.raises(StoreError):
        store.rename(b"/folder/none", b"/folder/new")
    store.mkdir(b"/folder/below")
    store.concat(b"/folder/close", [])
    assert descriptors() == before


def test_a_join_keeps_the_attributes_and_the_old_version_readable(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(5000, 1))
    (tmp_path / "a").chmod(0o640)
    (tmp_path / "b").write_bytes(content(3000, 2))
    held = store.open(b"/a")
    store.concat(b"/a", [b"/b"])
    assert (tmp_path / "a").read_bytes() == content(5000, 1) + content(3000, 2)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert bytes(held.read(0, 5000)) == content(5000, 1)
    held.close()
    assert os.listdir(tmp_path) == ["a"]


def test_a_join_where_the_kernel_does_not_copy(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.EXDEV))
    (tmp_path / "a").write_bytes(content(3 << 20, 1))
    (tmp_path / "b").write_bytes(content(3000, 2))
    store.concat(b"/a", [b"/b"])
    assert (tmp_path / "a").read_bytes() == content(3 << 20, 1) + content(3000, 2)


def test_a_join_without_room_changes_nothing(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(NoSpace):
        store.concat(b"/a", [b"/b"])
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == b"a"


def test_moves_on_a_file_system_that_knows_no_flags(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_write, "_renameat2", None)
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "taken").write_bytes(b"y")
    (tmp_path / "folder").mkdir()
    for source in (b"/file", b"/folder"):
        with pytest.raises(Exists):
            store.rename(source, b"/taken")
    store.rename(b"/file", b"/new")
    store.rename(b"/folder", b"/other")
    assert sorted(os.listdir(tmp_path)) == ["new", "other", "taken"]


def test_owners(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store.set_attributes(b"/file", Attributes(owner=str(os.getuid()), group=str(os.getgid())))
    with pytest.raises(StoreError, match="no user 'nobody at all'"):
        store.set_attributes(b"/file", Attributes(owner="nobody at all"))
    with pytest.raises(StoreError, match="no group"):
        store.set_attributes(b"/file", Attributes(group="nobody at all"))
