"""Manifests and parts that are missing, changed or foreign: one clear line, and nothing else suffers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.errors import HostFailed, StaleVersion, StoreError
from stripefs.format.manifest import MANIFEST_MAX, Manifest, ManifestError, digest_of
from stripefs.store.striped import StripedStore
from tests.integration.store.striped.material import DATA, OTHER, UNIT, same, whole
from tests.support.stores import content, listing
from tests.support.striped_files import write_marked, write_striped


def test_parts_that_are_gone_with_their_version(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA, version="0" * 16)
    old = store.open(b"/f")
    write_striped(store, b"/f", OTHER, version="1" * 16)
    os.unlink(os.fsencode(tmp_path) + manifest.parts[1].path())
    assert bytes(old.read(0, UNIT)) == DATA[:UNIT]
    with pytest.raises(StaleVersion, match="/f was replaced or deleted"):
        old.read(UNIT, UNIT)
    store.remove(b"/f")
    with pytest.raises(StaleVersion):
        old.read(UNIT, UNIT)
    old.close()


def resealed(data: bytes) -> bytes:
    return data[:-16] + digest_of(data[:-16])


DAMAGED = r"manifest is (damaged|cut short)"
CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", DAMAGED),
    "a cut head": (lambda data: data[:20], DAMAGED),
    "a flipped bit": (lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:], "checksum does not fit"),
    "a newer format": (lambda data: resealed(data[:12] + b"\2\0" + data[14:]), "format 2"),
    "too long": (lambda data: data.ljust(MANIFEST_MAX + 1, b"\0"), DAMAGED),
    "ordinary bytes": (lambda data: b"x" * len(data), DAMAGED),
}


@pytest.mark.parametrize("name", CHANGES)
def test_marked_files_that_are_no_whole_manifest_are_refused(store: StripedStore, name: str) -> None:
    change, message = CHANGES[name]
    data = change(write_striped(store, b"/a/good", DATA).to_bytes())
    write_marked(store, b"/a/bad", data)
    for call in (store.stat, store.open, store.get, store.manifest):
        with pytest.raises(StoreError, match=message) as caught:
            call(b"/a/bad")
        assert type(caught.value) in (StoreError, ManifestError)
        assert "/a/bad" in str(caught.value)
        assert "\n" not in str(caught.value)
    bad, good = listing(store, b"/a")
    assert same(good, store.stat(b"/a/good"))
    assert (bad.name, bad.length) == (b"bad", len(data))
    with pytest.raises(StoreError, match=message):
        store.open(b"/a/bad", bad.identity)
    assert whole(store, b"/a/good") == DATA


def test_files_without_the_mark_are_ordinary_whatever_their_bytes(store: StripedStore) -> None:
    manifest = write_striped(store, b"/striped", DATA).to_bytes()
    for data in (manifest, *(change(manifest) for change, _ in CHANGES.values())):
        store.put(b"/f", [data], replace=True)
        assert same(store.stat(b"/f"), store.inner.stat(b"/f"), listing(store, b"/")[0])
        assert whole(store, b"/f") == data
        assert store.manifest(b"/f") is None


def part_file(tmp_path: Path, manifest: Manifest, index: int) -> Path:
    return Path(os.fsdecode(os.fsencode(tmp_path) + manifest.parts[index].path()))


def test_a_part_that_is_missing(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    part_file(tmp_path, manifest, 1).unlink()
    handle = store.open(b"/f")
    assert len(handle.locate(0, len(DATA))) == 11
    assert bytes(handle.read(0, UNIT)) == DATA[:UNIT]
    with pytest.raises(StoreError, match=r"/f: its part /.stripefs/0123456789abcdef/1 is missing") as caught:
        handle.read(UNIT, 1)
    assert type(caught.value) is StoreError
    handle.close()
    assert store.stat(b"/f").length == len(DATA)


def test_a_part_of_another_length(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    with part_file(tmp_path, manifest, 0).open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match=f"has {manifest.parts[0].length + 4} bytes, not {manifest.parts[0].length}"):
        store.get(b"/f")


@pytest.mark.parametrize("kind", ["directory", "fifo", "symlink", "folder"])
def test_a_part_that_is_no_file(store: StripedStore, tmp_path: Path, kind: str) -> None:
    """A read waits for no writer of a FIFO and follows no link, also not to a file of the same bytes."""
    manifest = write_striped(store, b"/f", DATA)
    part = part_file(tmp_path, manifest, 0)
    kept = tmp_path / "kept"
    if kind == "folder":
        part.parent.rename(kept)
        part.parent.symlink_to(kept)
    else:
        part.rename(kept)
    if kind == "directory":
        part.mkdir()
    elif kind == "fifo":
        os.mkfifo(part)
    elif kind == "symlink":
        part.symlink_to(kept)
    with pytest.raises(StoreError, match="/f: its part") as caught:
        store.get(b"/f")
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize(("at", "message"), [(0, "byte 0 on does not fit"), (-1, "checksums of its part")])
def test_changed_bytes_are_refused_after_a_second_try(
    store: StripedStore, tmp_path: Path, at: int, message: str
) -> None:
    manifest = write_striped(store, b"/f", DATA)
    file = part_file(tmp_path, manifest, 2)
    changed = bytearray(file.read_bytes())
    changed[at] ^= 1
    file.write_bytes(changed)
    handle = store.open(b"/f")
    with pytest.raises(HostFailed, match=message):
        handle.read(2 * UNIT, 1)
    with pytest.raises(StoreError, match=message) as caught:
        handle.read(2 * UNIT, 1)
    assert type(caught.value) is StoreError
    assert bytes(handle.read(0, 2 * UNIT)) == DATA[: 2 * UNIT]
    handle.close()


def test_a_part_that_changes_while_it_is_open(store: StripedStore, tmp_path: Path) -> None:
    manifest = write_striped(store, b"/f", DATA)
    handle = store.open(b"/f")
    handle.read(0, 1)
    os.utime(part_file(tmp_path, manifest, 0), ns=(1, 1))
    with pytest.raises(StoreError, match="was changed") as caught:
        handle.read(0, 1)
    assert type(caught.value) is StoreError
    handle.close()


@pytest.mark.usefixtures("short_manifests")
@pytest.mark.parametrize("lose", ["unlink", "shorten", "spoil"])
def test_a_list_of_parts_that_is_lost(store: StripedStore, tmp_path: Path, lose: str) -> None:
    manifest = write_striped(store, b"/f", content(50 * UNIT), [(UNIT, 1)] * 50)
    found = manifest.parts_list()
    assert found is not None
    file = Path(os.fsdecode(os.fsencode(tmp_path) + found[0]))
    if lose == "unlink":
        file.unlink()
    else:
        file.write_bytes(found[1][:-1] + (b"" if lose == "shorten" else b"\xff"))
    with pytest.raises(StoreError, match="/f: ") as caught:
        store.open(b"/f")
    assert type(caught.value) is StoreError
    assert store.stat(b"/f").length == 50 * UNIT
