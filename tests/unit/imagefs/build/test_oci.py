"""Image layouts: whatever compression, and every digest checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagefs.build.oci import Layout, unpack
from imagefs.errors import BuildError, HostileLayer
from imagefs.reference import Platform
from imagefs.settings import LayerLimits
from tests.support.images.layers import file, layer, layout
from tests.unit.imagefs.build.victim import documents, put

LOWER, UPPER, TOP = (layer(file(name, name.encode() * 3000)) for name in ("a", "b", "c"))


def test_layers_of_every_compression(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [LOWER, UPPER, TOP], ["", "gzip", "zstd"])))
    source = found.image("app")
    assert source.config["rootfs"]["type"] == "layers"
    for described, data in zip(source.layers, (LOWER, UPPER, TOP), strict=True):
        unpack(found, described, tmp_path / "out", LayerLimits())
        assert (tmp_path / "out").read_bytes() == data


def test_the_only_image_needs_no_name(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [LOWER])))
    assert found.image().digest == found.image("app").digest
    with pytest.raises(BuildError, match=r"no image 'other' \(app\)"):
        found.image("other")


def test_a_config_with_other_bytes_is_refused(tmp_path: Path) -> None:
    folder = layout(tmp_path / "l", [LOWER], [""])
    blob = next(path for path in (folder / "blobs/sha256").iterdir() if path.read_bytes().startswith(b'{"arch'))
    blob.write_bytes(blob.read_bytes().replace(b"amd64", b"arm64"))
    with pytest.raises(BuildError, match="holds other bytes than its digest says"):
        Layout(str(folder)).image("app")


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None], platform: dict[str, str] | None = None) -> Layout:
    """The layout with another manifest; below an index of platforms, where one is given."""
    top, manifest, _ = documents(folder)
    change(manifest)
    found = {"mediaType": manifest["mediaType"], **put(folder, manifest)}
    if platform:
        kind = "application/vnd.oci.image.index.v1+json"
        index = {"mediaType": kind, "manifests": [{**found, "platform": platform}]}
        found = {"mediaType": kind, **put(folder, index)}
    (folder / "index.json").write_text(json.dumps({**top, "manifests": [found]}))
    return Layout(str(folder))


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/vnd.oci.image.config.v1+json", "application/x.tar+gzip"]
)
def test_layers_of_unknown_types_are_refused(tmp_path: Path, kind: str) -> None:
    folder = layout(tmp_path / "l", [LOWER, UPPER])
    with pytest.raises(BuildError, match=r"layer sha256:[0-9a-f]{64} is of a type that is not known: '"):
        rewritten(folder, lambda manifest: manifest["layers"][1].update(mediaType=kind)).image()


@pytest.mark.parametrize("kind", ["diff", "foreign.diff"])
def test_types_of_docker_are_known(tmp_path: Path, kind: str) -> None:
    folder = layout(tmp_path / "l", [LOWER])
    name = f"application/vnd.docker.image.rootfs.{kind}.tar.gzip"
    found = rewritten(folder, lambda manifest: manifest["layers"][0].update(mediaType=name))
    unpack(found, found.image().layers[0], tmp_path / "out", LayerLimits())
    assert (tmp_path / "out").read_bytes() == LOWER


def test_a_layer_that_is_kept_elsewhere_is_refused_by_its_address(tmp_path: Path) -> None:
    folder = layout(tmp_path / "l", [LOWER])
    place = "https://127.0.0.1:1/foreign/layer"
    found = rewritten(folder, lambda manifest: manifest["layers"][0].update(urls=[place]))
    digest = found.image().layers[0][0].digest  # which is here all the same
    (folder / "blobs" / digest.replace(":", "/")).unlink()
    with pytest.raises(BuildError, match=f"{digest} is not in the image: it is kept at {place}") as raised:
        found.image()
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize(("own", "shown"), [(None, "v7"), ("v6", "v6")])
def test_a_variant_that_only_the_index_tells(tmp_path: Path, own: str | None, shown: str) -> None:
    folder = layout(tmp_path / "l", [LOWER])
    config = documents(folder)[2] | ({"variant": own} if own else {})

    def change(manifest: dict[str, Any]) -> None:
        manifest["config"].update(put(folder, config))

    found = rewritten(folder, change, {"os": "linux", "architecture": "arm", "variant": "v7"})
    assert found.image(platform=Platform("linux", "arm", "v7")).config["variant"] == shown


def test_a_variant_beside_the_only_image_of_a_layout(tmp_path: Path) -> None:
    folder = layout(tmp_path / "l", [LOWER])
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["platform"] = {"os": "linux", "architecture": "arm", "variant": "v7"}
    (folder / "index.json").write_text(json.dumps({**index, "manifests": index["manifests"][:1]}))
    assert Layout(str(folder)).image().config["variant"] == "v7"


def test_bombs_are_refused(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [bytes(16 << 20)])))
    with pytest.raises(HostileLayer, match="unpacks to more than"):
        unpack(found, found.image("app").layers[0], tmp_path / "out", LayerLimits(layer_bytes=1 << 20))
    assert (tmp_path / "out").stat().st_size <= 4 << 20


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"imageLayoutVersion": 1}', '{"imageLayoutVersion": "2.0.0"}'])
def test_what_is_no_layout(tmp_path: Path, text: str) -> None:
    (tmp_path / "oci-layout").write_text(text)
    with pytest.raises(BuildError):
        Layout(str(tmp_path))
