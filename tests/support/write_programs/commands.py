"""Commands that everybody uses."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from tests.support.write_programs.place import MIB, Expected, Place, payload

__all__ = ["cp", "rsync", "rsync_in_place", "sqlite", "tar", "zip_command"]


def tree_to_copy(place: Place) -> Expected:
    """A small tree in `aside/tree`, with modes and times of its own."""
    tree = place.aside / "tree"
    contents = {
        "a/one": payload("one", 3 * MIB + 1),
        "a/empty": b"",
        "b/c/two": payload("two", 77),
        "b/big": payload("big", 9 * MIB),
    }
    for number, (name, data) in enumerate(contents.items()):
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod((0o644, 0o600, 0o444, 0o755)[number])
        os.utime(file, (1_600_000_000 + number, 1_700_000_000 + number))
    return contents


def _same_attributes(place: Place, names: Expected, below: Path) -> None:
    for name in names:
        shown, meant = (below / name).stat(), (place.aside / "tree" / name).stat()
        assert (oct(shown.st_mode), int(shown.st_mtime)) == (oct(meant.st_mode), int(meant.st_mtime)), name


def cp(place: Place) -> Expected:
    """With and without attributes, onto nothing and over what is there."""
    contents = tree_to_copy(place)
    place.run("cp", "-r", place.aside / "tree", place.folder / "plain")
    place.run("cp", "-a", place.aside / "tree", place.folder / "kept")
    _same_attributes(place, contents, place.folder / "kept")
    place.run("cp", place.aside / "tree/a/one", place.folder / "plain/b/big")
    return {
        **{f"plain/{name}": data for name, data in contents.items()},
        **{f"kept/{name}": data for name, data in contents.items()},
        "plain/b/big": contents["a/one"],
    }


def rsync(place: Place) -> Expected:
    """A tree, once more without anything to do, and once more after a change."""
    contents = tree_to_copy(place)
    command = ("rsync", "-a", "--itemize-changes", f"{place.aside}/tree/", f"{place.folder}/synced/")
    assert b"b/big" in place.run(*command)
    _same_attributes(place, contents, place.folder / "synced")
    assert place.run(*command) == b""
    contents["a/one"] = payload("changed", 2 * MIB)
    (place.aside / "tree/a/one").write_bytes(contents["a/one"])
    assert place.run(*command).split() == [b">f.st......", b"a/one"]
    return {f"synced/{name}": data for name, data in contents.items()}


def rsync_in_place(place: Place) -> Expected:
    contents = tree_to_copy(place)
    command = ("rsync", "-a", "--inplace", "--no-whole-file", f"{place.aside}/tree/", f"{place.folder}/inplace/")
    place.run(*command)
    changed = bytearray(contents["b/big"])
    changed[5_000_000:5_000_100] = bytes(100)
    contents["b/big"] = bytes(changed)
    (place.aside / "tree/b/big").chmod(0o755)
    (place.aside / "tree/b/big").write_bytes(changed)
    place.run(*command)
    return {f"inplace/{name}": data for name, data in contents.items()}


def tar(place: Place) -> Expected:
    """An archive written into the folder, and its files taken out there, with attributes."""
    contents = tree_to_copy(place)
    place.run("tar", "-cf", place.folder / "tree.tar", "-C", place.aside, "tree")
    place.run("tar", "-xpf", place.folder / "tree.tar", "-C", place.folder)
    _same_attributes(place, contents, place.folder / "tree")
    place.run("tar", "-czf", place.folder / "tree.tgz", "-C", place.folder, "tree")
    listed = place.run("tar", "-tzf", place.folder / "tree.tgz").decode().split()
    assert {f"tree/{name}" for name in contents} <= set(listed)
    return {f"tree/{name}": data for name, data in contents.items()}


def zip_command(place: Place) -> Expected:
    contents = tree_to_copy(place)
    place.run("zip", "-qr", place.folder / "tree.zip", "tree", cwd=place.aside)
    place.run("zip", "-q", place.folder / "tree.zip", "tree/b/c/two", cwd=place.aside)  # once more, into what is there
    with zipfile.ZipFile(place.folder / "tree.zip") as archive:
        assert {name: archive.read(f"tree/{name}") for name in contents} == contents
    return {"tree.zip": (place.folder / "tree.zip").read_bytes()}


def sqlite(place: Place) -> Expected:
    """A database that one program after the other changes, with a rollback journal beside it or a write-ahead log."""
    script = "create table t(a, b); insert into t values(1, randomblob(300000)), (2, 'two'); delete from t where a = 1;"
    place.run("sqlite3", place.folder / "db", f"{script} insert into t values(3, hex(zeroblob(50000))); vacuum;")
    for mode, row in (("delete", 4), ("wal", 5), ("delete", 6)):
        changes = f"pragma journal_mode = {mode}; insert into t values({row}, '{mode}'); update t set b = b || '!';"
        place.run("sqlite3", "-bail", place.folder / "db", changes)
    found = place.run("sqlite3", place.folder / "db", "pragma integrity_check; select a, length(b) from t order by a;")
    assert found.split() == [b"ok", b"2|6", b"3|100003", b"4|9", b"5|5", b"6|7"]
    assert os.listdir(place.folder) == ["db"]
    return {"db": (place.folder / "db").read_bytes()}
