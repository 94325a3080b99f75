"""The local store's own ways of writing; what all stores owe is in write_conformance."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.errors import Exists, NoSpace, NotADirectory, StoreError, Unsupported
from stripefs.store import local_write
from stripefs.store.base import Attributes
from stripefs.store.local import LocalStore
from tests.support.stores import content


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(os.fsencode(tmp_path))
    yield store
    store.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


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
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    (tmp_path / "a").write_bytes(content(3 << 20, 1))
    (tmp_path / "b").write_bytes(content(3000, 2))
    store.concat(b"/a", [b"/b"])
    assert (tmp_path / "a").read_bytes() == content(3 << 20, 1) + content(3000, 2)


def test_a_join_without_room_changes_nothing(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full)
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
