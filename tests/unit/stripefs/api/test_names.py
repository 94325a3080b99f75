"""Names: what is there, and how they change; a striped file is one file."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import stripefs
from stripefs.store.base import Status
from stripefs.store.local import LocalStore
from stripefs.write import namespace
from tests.support.python_api import MIB, content, names, spread
from tests.support.refusals import refused


@pytest.fixture
def fs(place: Path) -> stripefs.FileSystem:
    return stripefs.connect(str(place))


def parts(place: Path) -> list[Path]:
    pool = os.walk(place / ".stripefs")  # which, unlike glob, bears with directories that go meanwhile
    return [Path(folder, name) for folder, _, files in pool for name in files if name[0].isdigit()]


def test_what_is_there(place: Path, fs: stripefs.FileSystem) -> None:
    (place / "folder" / "inner").mkdir(parents=True)
    (place / "folder" / "file").write_bytes(b"12345")
    os.utime(place / "folder" / "file", ns=(5, 1_500_000_000_000_000_000))
    (place / "link").symlink_to("folder")
    entry = fs.stat("folder/file")
    assert (entry.name, entry.type, entry.size, entry.mode) == ("file", "file", 5, 0o644)
    assert (entry.mtime_ns, entry.mtime) == (1_500_000_000_000_000_000, 1.5e9)
    assert entry.version.startswith("5:1500000000000000000:")
    assert fs.stat("/") == fs.stat("") == fs.stat(".")
    assert fs.stat("/").type == "directory"
    assert (fs.isdir("folder"), fs.isfile("folder"), fs.isdir("no"), fs.isfile("folder/file")) == (
        True,
        False,
        False,
        True,
    )
    assert (fs.exists("folder/file/x"), fs.exists("folder"), fs.stat("link").type) == (False, True, "symlink")
    assert fs.listdir() == ["folder", "link"]
    assert [(entry.name, entry.type) for entry in fs.scandir("folder")] == [("file", "file"), ("inner", "directory")]
    assert list(fs.walk()) == [("/", ["folder"], ["link"]), ("/folder", ["inner"], ["file"]), ("/folder/inner", [], [])]
    assert fs.read_bytes(b"/folder//./file") == fs.read_bytes(Path("folder/file")) == b"12345"


def test_paths_do_not_leave_the_source(place: Path, fs: stripefs.FileSystem) -> None:
    (place.parent / "outside").write_bytes(b"no")
    assert not fs.exists("../outside")
    assert not fs.exists("/../../outside")


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (FileNotFoundError, lambda fs: fs.stat("no")),
        (NotADirectoryError, lambda fs: fs.scandir("file")),
        (IsADirectoryError, lambda fs: fs.remove("folder")),
        (NotADirectoryError, lambda fs: fs.rmdir("file")),
        (FileExistsError, lambda fs: fs.mkdir("folder")),
        (FileExistsError, lambda fs: fs.mkdir("file", exist_ok=True)),
        (FileNotFoundError, lambda fs: fs.mkdir("a/b")),
        (FileNotFoundError, lambda fs: fs.write_bytes("missing/file", b"")),
        (FileNotFoundError, lambda fs: fs.rename("no", "new")),
        (FileExistsError, lambda fs: fs.rename("file", "other")),
        (IsADirectoryError, lambda fs: fs.replace("file", "folder")),
        (FileNotFoundError, lambda fs: fs.rmtree("no")),
        (PermissionError, lambda fs: fs.mkdir(".stripefs")),
        (PermissionError, lambda fs: fs.rename("file", ".file.stripefs-lock")),
        (PermissionError, lambda fs: fs.rename("file", ".stripefs/file")),
        (PermissionError, lambda fs: fs.mkdir(".stripefs/new", parents=True)),
        (PermissionError, lambda fs: fs.write_bytes(".stripefs/0123456789abcdef/0", b"")),
    ],
)
def test_errors(place: Path, fs: stripefs.FileSystem, kind: type[OSError], call: Callable[..., object]) -> None:
    (place / "folder").mkdir()
    (place / "folder" / "inner").touch()
    for name in ("file", "other"):
        (place / name).write_bytes(b"x")
    with pytest.raises(kind) as caught:
        call(fs)
    assert caught.value.filename.startswith(str(place))
    with refused(errno.ENOTEMPTY):
        fs.rmdir("folder")
    with refused(errno.EINVAL):
        fs.rename("folder", "folder/inside")
    for refusing in (fs.open, fs.remove, lambda name: fs.fetch([(name, None, None)])):
        with refused(errno.EINVAL):
            refusing("a\0b")


def test_a_tree_is_removed_with_what_writers_left(place: Path, fs: stripefs.FileSystem) -> None:
    for folder in ("tree", "tree/a", "tree/a/b", "tree/c"):
        fs.mkdir(folder)
        for number in range(10):
            fs.write_bytes(f"{folder}/file{number}", b"x")
    (place / "tree" / "a" / "..stripefs-layout").write_text("plain\n")
    fs.write_bytes("file", b"x")
    fs.rmtree("tree")
    fs.rmtree("file")
    assert names(place) == set()


def test_striped_files_are_whole(place: Path) -> None:
    fs = stripefs.connect(spread(place), layout="striped", unit="1MiB", grace=0)
    data = content(20 * MIB)
    fs.write_bytes("one", data)
    fs.write_bytes("two", data[::-1])
    assert [entry.size for entry in fs.scandir()] == [20 * MIB, 20 * MIB]
    count = len(parts(place))
    fs.mkdir("folder")
    fs.rename("one", "folder/one")
    assert fs.read_bytes("folder/one") == data
    assert len(parts(place)) == count
    fs.replace("folder/one", "two")
    assert fs.read_bytes("two") == data
    fs.remove("two")
    while parts(place):
        os.sched_yield()


def test_who_reads_a_striped_file_goes_on_when_it_is_replaced_or_removed(place: Path) -> None:
    fs = stripefs.connect(spread(place), layout="striped", unit="1MiB")
    data = content(20 * MIB)
    fs.write_bytes("one", data)
    with fs.open("one") as first:
        fs.write_bytes("one", data[::-1])
        with fs.open("one") as second:
            fs.remove("one")
            assert second.read() == data[::-1]
        assert first.read() == data
    assert fs.listdir() == []


def test_what_is_being_written_holds_up_renames(place: Path, fs: stripefs.FileSystem, monkeypatch) -> None:
    monkeypatch.setattr(namespace, "BUSY", replace(namespace.BUSY, seconds=0.1))
    fs.mkdir("folder")
    with fs.open("folder/file", "wb") as file:
        file.write(b"x")
        with refused(errno.EBUSY):
            fs.rename("folder", "other")
    fs.rename("folder", "other")
    with fs.open("other/file", "ab") as file:
        for change in (fs.rename, fs.replace):
            with refused(errno.EBUSY):
                change("other/file", "other/new")
        with pytest.raises(OSError, match="being written"):
            fs.remove("other/file")
        (place / "other" / "third").touch()
        with pytest.raises(OSError, match="being written"):
            fs.replace("other/third", "other/file")
        file.write(b"y")
    assert fs.read_bytes("other/file") == b"xy"


def test_a_second_try_finds_what_the_first_one_did(place: Path) -> None:
    fs = stripefs.connect(f"faulty+file://{place}?on=rename,remove,rmdir&rate=0.5&seed=1&kinds=service&after=true")
    for number in range(10):
        fs.mkdir(f"folder{number}")
        (place / f"folder{number}" / "file").touch()
        fs.rename(f"folder{number}/file", f"folder{number}/new")
        fs.remove(f"folder{number}/new")
        fs.rmdir(f"folder{number}")
    assert names(place) == set()


def test_a_source_is_told_by_plain_values(place: Path, fs: stripefs.FileSystem) -> None:
    fs.write_bytes("file", b"x")
    assert pickle.loads(pickle.dumps(fs)).read_bytes("file") == b"x"
    assert copy.copy(fs).exists("file")
    assert repr(fs) == f"<stripefs.FileSystem '{place}'>"
    assert "secret" not in repr(stripefs.connect("https://me:secret@host/dir"))


def test_figures(place: Path) -> None:
    fs = stripefs.connect(spread(place), memory="64MiB", layout="striped", unit="1MiB")
    fs.write_bytes("file", content(20 * MIB))
    fs.read_bytes("file")
    status = fs.status()
    assert status["source"] == spread(place)
    assert status["reader"]["memory"]["budget"] == 64 * MIB
    assert status["reader"]["bytes_read"] == 20 * MIB
    assert len(status["reader"]["hosts"]) == 4
    assert status["writers"][0]["sent_bytes"] > 20 * MIB
    assert status["store"]["pool of striped files"] == f"{place}/.stripefs"


def test_attributes(place: Path, fs: stripefs.FileSystem) -> None:
    (place / "folder").mkdir()
    fs.write_bytes("folder/file", b"1")
    fs.set_attributes("folder/file", mode=0o604, mtime_ns=1_500_000_000_000_000_000)
    fs.set_attributes("folder", mode=0o711)
    entry = fs.stat("folder/file")
    assert (entry.mode, entry.mtime_ns, fs.stat("folder").mode) == (0o604, 1_500_000_000_000_000_000, 0o711)
    with fs.open("folder/file", "wb") as file:
        file.set_attributes(mtime_ns=1_400_000_000_000_000_000)
        file.write(b"22")
    entry = fs.stat("folder/file")
    assert (entry.size, entry.mode, entry.mtime_ns) == (2, 0o604, 1_400_000_000_000_000_000)
    for hidden in (".stripefs", ".file.stripefs-lock", "none"):
        with pytest.raises(FileNotFoundError):
            fs.set_attributes(hidden, mode=0o777)


def test_a_tree_with_sources_in_it(place: Path) -> None:
    for name in ("tree", "tree/one", "tree/one/deep"):
        (place / name).mkdir(exist_ok=True)
        stripefs.connect(str(place / name), layout="striped", unit="1MiB").write_bytes("file", content(10 * MIB))
    whole = stripefs.FileSystem.of_service(str(place))[0]
    with refused(errno.ENOTEMPTY):
        whole.rmtree(place / "tree")
    assert stripefs.connect(str(place)).listdir("tree/one") == ["deep"]
    at_once = stripefs.FileSystem.of_service(str(place), grace=0)[0]
    (place / "other").mkdir()
    stripefs.connect(str(place / "other"), layout="striped", unit="1MiB").write_bytes("file", content(10 * MIB))
    at_once.rmtree(place / "other")
    assert os.listdir(place) == ["tree"]


def test_pools_above_a_new_file_are_looked_for_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "a" / "b"
    folder.mkdir(parents=True)
    met = threading.Barrier(len(folder.parts))  # one for each directory from the file up to the root
    stat = LocalStore.stat

    def together(self: LocalStore, path: bytes) -> Status:
        if path.endswith(b"/.stripefs"):
            met.wait(60)
        return stat(self, path)

    monkeypatch.setattr(LocalStore, "stat", together)
    with stripefs.open(str(folder / "file"), "wb") as file:
        file.write(b"content")
    assert (folder / "file").read_bytes() == b"content"
