"""Image layouts: of every compression and type that is known; and those that nobody honest made are refused."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from imagefs.build.oci import Layout, unpack
from imagefs.errors import BuildError, HostileLayer
from imagefs.reference import Platform
from imagefs.settings import LayerLimits
from tests.support.images import archives as tar
from tests.support.images.layers import file, layer, layout
from tests.unit.imagefs.build.conftest import MIB, Victim, documents, put, replace, rewrite

INDEX = "application/vnd.oci.image.index.v1+json"


# -- bombs and damage of what is packed -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_bomb_is_not_unpacked_past_the_limit(tmp_path: Path, how: str) -> None:
    found = Layout(str(layout(tmp_path / "l", [bytes(16 * MIB)], [how])))
    with pytest.raises(HostileLayer, match="unpacks to more than"):
        unpack(found, found.image("app").layers[0], tmp_path / "out", LayerLimits(layer_bytes=MIB))
    assert (tmp_path / "out").stat().st_size <= 4 * MIB


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
    "layer-is-a-number": lambda found: found["layers"].append(5),
    "config-is-a-list": lambda found: found.update(config=[]),
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


@pytest.mark.parametrize("content", [7, "sha256:../outside/secret"])
def test_a_damaged_config(victim: Victim, content: object) -> None:
    path = victim.layers(tar.file(b"x") + tar.END)
    index, manifest, config = documents(path)
    config["rootfs"]["diff_ids"] = [content]
    manifest["config"].update(put(path, config))
    rewrite(path, index, manifest)
    victim.refuse(path, "no SHA-256 digest")


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[]", "{}", "7", '"x"', "\xff", '{"manifests": 7}', '{"manifests": [7]}', '{"manifests": []}'),
        *('{"manifests": [{}]}', '{"manifests": [{"digest": "x", "size": 1}]}', _nested(100_000)),
        *('{"manifests": [{"annotations": [1], "platform": "x", "digest": null}]}', '{"x":' + "9" * 10_000 + "}"),
        *('{"imageLayoutVersion": 1}', '{"imageLayoutVersion": "2.0.0"}'),
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
    found = documents(path)[0]["manifests"][0]
    for _ in range(10):
        found = {"mediaType": INDEX, **put(path, {"mediaType": INDEX, "manifests": [found]})}
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


@pytest.mark.parametrize("which", ["packed", "plain", "config"])
def test_wrong_digests(victim: Victim, which: str) -> None:
    path = victim.layers(tar.file(b"x") + tar.END, compress=["gzip"])
    manifest = documents(path)[1]
    digest = (manifest["config"] if which == "config" else manifest["layers"][0])["digest"]
    blob = path / "blobs" / digest.replace(":", "/")
    data = blob.read_bytes()
    if which == "plain":
        replace(path, data, b"something else")
        victim.refuse(path, "unpacks to other bytes than the config says", HostileLayer)
        return
    blob.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])  # of the layer, the system that packed it
    victim.refuse(path, "holds other bytes than its digest says")


# -- what is known ----------------------------------------------------------------------------------------------------

PLAIN = layer(file("a", b"a" * 3000))


def test_the_only_image_needs_no_name(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [PLAIN])))
    assert found.image().digest == found.image("app").digest
    with pytest.raises(BuildError, match=r"no image 'other' \(app\)"):
        found.image("other")


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None], platform: dict[str, str] | None = None) -> Layout:
    """The layout with another manifest; below an index of platforms, where one is given."""
    top, manifest, _ = documents(folder)
    change(manifest)
    found = {"mediaType": manifest["mediaType"], **put(folder, manifest)}
    if platform:
        index = {"mediaType": INDEX, "manifests": [{**found, "platform": platform}]}
        found = {"mediaType": INDEX, **put(folder, index)}
    (folder / "index.json").write_text(json.dumps({**top, "manifests": [found]}))
    return Layout(str(folder))


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/vnd.oci.image.config.v1+json", "application/x.tar+gzip"]
)
def test_layers_of_unknown_types_are_refused(tmp_path: Path, kind: str) -> None:
    folder = layout(tmp_path / "l", [PLAIN, PLAIN])
    with pytest.raises(BuildError, match=r"layer sha256:[0-9a-f]{64} is of a type that is not known: '"):
        rewritten(folder, lambda manifest: manifest["layers"][1].update(mediaType=kind)).image()


@pytest.mark.parametrize("kind", ["diff", "foreign.diff"])
def test_types_of_docker_are_known(tmp_path: Path, kind: str) -> None:
    name = f"application/vnd.docker.image.rootfs.{kind}.tar.gzip"
    found = rewritten(layout(tmp_path / "l", [PLAIN]), lambda manifest: manifest["layers"][0].update(mediaType=name))
    unpack(found, found.image().layers[0], tmp_path / "out", LayerLimits())
    assert (tmp_path / "out").read_bytes() == PLAIN


def test_a_layer_that_is_kept_elsewhere_is_refused_by_its_address(tmp_path: Path) -> None:
    folder = layout(tmp_path / "l", [PLAIN])
    place = "https://127.0.0.1:1/foreign/layer"
    found = rewritten(folder, lambda manifest: manifest["layers"][0].update(urls=[place]))
    digest = found.image().layers[0][0].digest  # which is here all the same
    (folder / "blobs" / digest.replace(":", "/")).unlink()
    with pytest.raises(BuildError, match=f"{digest} is not in the image: it is kept at {place}") as raised:
        found.image()
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize(("own", "shown"), [(None, "v7"), ("v6", "v6")])
def test_a_variant_that_only_the_index_tells(tmp_path: Path, own: str | None, shown: str) -> None:
    folder = layout(tmp_path / "l", [PLAIN])
    config = documents(folder)[2] | ({"variant": own} if own else {})
    platform = {"os": "linux", "architecture": "arm", "variant": "v7"}
    found = rewritten(folder, lambda manifest: manifest["config"].update(put(folder, config)), platform)
    assert found.image(platform=Platform("linux", "arm", "v7")).config["variant"] == shown
    top = json.loads((folder / "index.json").read_text())
    inner = json.loads((folder / "blobs" / top["manifests"][0]["digest"].replace(":", "/")).read_text())["manifests"]
    (folder / "index.json").write_text(json.dumps({**top, "manifests": inner}))
    assert Layout(str(folder)).image().config["variant"] == shown  # told beside the only image of the layout
