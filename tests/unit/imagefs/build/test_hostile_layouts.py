"""Image layouts and packed layers that nobody honest made: bombs, wrong digests, damaged documents."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from imagefs.errors import HostileLayer
from tests.support.images import archives as tar
from tests.unit.imagefs.build.victim import MIB, Victim, documents, put, replace, rewrite


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    (tmp_path / "machine").mkdir()
    return Victim(tmp_path / "machine")


# -- bombs and damage of what is packed -----------------------------------------------------------------------------


def test_a_bomb_of_gzip_or_zstd(victim: Victim) -> None:
    for how in ("gzip", "zstd"):
        path = victim.layers(bytes(33 * MIB), compress=[how])
        victim.refuse(path, "unpacks to more than 33554432 bytes", HostileLayer)


def test_a_bomb_that_stays_below_the_limit_of_bytes(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefs.build.oci._RATIO_FROM", 8 * MIB)
    path = victim.layers(bytes(20 * MIB), compress=["zstd"])
    victim.refuse(path, "unpacks to 200 times as much", HostileLayer)
    path = victim.layers(*[bytes(1024) + bytes([number]) * MIB for number in range(10)], compress=["gzip"] * 10)
    victim.refuse(path, "unpacks to 200 times as much", HostileLayer)


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_packed_layer_that_ends_in_its_middle(victim: Victim, how: str, cut: int) -> None:
    """Its digests are those of what is there: nothing but the packing itself tells."""
    archive = tar.file(b"x", data=os.urandom(5000)) + tar.END
    packed = gzip.compress(archive) if how == "gzip" else zstandard.compress(archive)
    path = victim.layers(archive, compress=[how])
    replace(path, packed[:-cut], archive)
    victim.refuse(path, "ends in its middle")
    path = victim.layers(archive, compress=[how])
    replace(path, packed + b"rubbish", archive)
    victim.refuse(path, "cannot be unpacked")


def test_many_members_take_no_more_time_than_their_bytes(victim: Victim) -> None:
    archive = tar.file(b"x", data=b"1") + tar.END
    path = victim.layers(archive)
    replace(path, gzip.compress(b"") * 100_000 + gzip.compress(archive), archive)
    victim.build(path)


# -- layouts ----------------------------------------------------------------------------------------------------------


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


DAMAGED_DOCUMENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a-list": lambda _: [],
    "no-layers": lambda found: found.pop("layers"),
    "more-layers-than-contents": lambda found: found["layers"].append(found["layers"][0]),
    "layer-with-a-path": lambda found: found["layers"][0].update(digest="sha256:../../../outside/secret"),
    "layer-of-another-hash": lambda found: found["layers"][0].update(digest="sha512:" + "0" * 128),
    "digest-is-a-number": lambda found: found["layers"][0].update(digest=7),
    "size-is-negative": lambda found: found["layers"][0].update(size=-1),
    "size-is-a-word": lambda found: found["layers"][0].update(size="5"),
    "size-is-true": lambda found: found["layers"][0].update(size=True),
    "size-is-wrong": lambda found: found["layers"][0].update(size=found["layers"][0]["size"] + 1),
    "config-is-huge": lambda found: found["config"].update(size=1 << 40),
    "media-type-is-a-list": lambda found: found.update(mediaType=["x"]),
    "surrogate": lambda found: found.update(annotations={"x": "\ud800"}),
    "not-a-number": lambda found: found.update(x=float("nan")),
}


@pytest.mark.parametrize("name", DAMAGED_DOCUMENTS)
def test_a_damaged_manifest(victim: Victim, name: str) -> None:
    path = victim.layers(tar.file(b"x") + tar.END)
    index, manifest, _ = documents(path)
    found = DAMAGED_DOCUMENTS[name](manifest)
    rewrite(path, index, found if name == "a-list" else manifest)
    victim.refuse(path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[]", "{}", "7", '"x"', "\xff", '{"manifests": 7}', '{"manifests": [7]}', '{"manifests": []}'),
        *('{"manifests": [{}]}', '{"manifests": [{"digest": "x", "size": 1}]}', _nested(100_000)),
        *('{"manifests": [{"annotations": [1], "platform": "x", "digest": null}]}', '{"x":' + "9" * 10_000 + "}"),
    ],
)
def test_a_damaged_index(victim: Victim, text: str) -> None:
    path = victim.layers(tar.file(b"x") + tar.END)
    (path / "index.json").write_bytes(text.encode("latin-1"))
    victim.refuse(path)
    (path / "oci-layout").write_bytes(text.encode("latin-1"))
    victim.refuse(path)


def test_an_index_that_names_itself_is_not_followed_for_ever(victim: Victim) -> None:
    path = victim.layers(tar.file(b"x") + tar.END)
    found, kind = documents(path)[0]["manifests"][0], "application/vnd.oci.image.index.v1+json"
    for _ in range(10):
        found = {"mediaType": kind, **put(path, {"mediaType": kind, "manifests": [found]})}
    (path / "index.json").write_text(json.dumps({"manifests": [found]}))
    victim.refuse(path, "neither an image nor an index")


@pytest.mark.parametrize("name", ["index.json", "oci-layout", "blob"])
@pytest.mark.parametrize("kind", ["missing", "pipe", "folder", "endless"])
def test_a_layout_of_other_things_than_files(victim: Victim, name: str, kind: str) -> None:
    path = victim.layers(tar.file(b"x") + tar.END)
    digest = json.loads((path / "index.json").read_text())["manifests"][0]["digest"]
    broken = path / name if name != "blob" else path / "blobs" / digest.replace(":", "/")
    broken.unlink()
    if kind == "pipe":
        os.mkfifo(broken)
    elif kind == "folder":
        broken.mkdir()
    elif kind == "endless":
        broken.symlink_to("/dev/zero")
    victim.refuse(path, "is missing in" if kind == "missing" else "is no file")


@pytest.mark.parametrize("which", ["packed", "plain"])
def test_wrong_digests(victim: Victim, which: str) -> None:
    path = victim.layers(tar.file(b"x") + tar.END, compress=["gzip"])
    layer = path / "blobs" / documents(path)[1]["layers"][0]["digest"].replace(":", "/")
    data = layer.read_bytes()
    if which == "packed":
        layer.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])  # the system that packed it
        victim.refuse(path, "holds other bytes than its digest says", HostileLayer)
    else:
        replace(path, data, b"something else")
        victim.refuse(path, "unpacks to other bytes than the config says", HostileLayer)
