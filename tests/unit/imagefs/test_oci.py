"""Image layouts: whatever compression, and every digest checked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from imagefs.build.limits import Limits
from imagefs.build.oci import Layout, unpack
from imagefs.errors import BuildError, HostileLayer
from tests.unit.imagefs.layers import file, layer, layout

LOWER, UPPER, TOP = (layer(file(name, name.encode() * 3000)) for name in ("a", "b", "c"))


def test_layers_of_every_compression(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [LOWER, UPPER, TOP], ["", "gzip", "zstd"])))
    source = found.image("app")
    assert json.loads(source.config)["rootfs"]["type"] == "layers"
    for described, data in zip(source.layers, (LOWER, UPPER, TOP), strict=True):
        unpack(found, described, tmp_path / "out", Limits())
        assert (tmp_path / "out").read_bytes() == data


def test_a_gzip_file_of_several_members(tmp_path: Path) -> None:
    middle = len(LOWER) // 2
    packed = gzip.compress(LOWER[:middle]) + gzip.compress(LOWER[middle:])
    from imagefs.build.oci import _decompress

    assert b"".join(_decompress("", iter([packed[:7], packed[7:]]))) == LOWER


def test_the_only_image_needs_no_name(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [LOWER])))
    assert found.image().digest == found.image("app").digest
    with pytest.raises(BuildError, match=r"no image 'other' \(app\)"):
        found.image("other")


@pytest.mark.parametrize("which", ["config", "layer"])
def test_wrong_bytes_are_refused(tmp_path: Path, which: str) -> None:
    folder = layout(tmp_path / "l", [LOWER], [""])
    found = Layout(str(folder))
    source = found.image("app")
    if which == "layer":
        blob = folder / "blobs" / source.layers[0][0].digest.replace(":", "/")
        blob.write_bytes(UPPER)
        with pytest.raises(HostileLayer, match="holds other bytes than its digest says"):
            unpack(found, source.layers[0], tmp_path / "out", Limits())
        return
    blob = next(path for path in (folder / "blobs/sha256").iterdir() if path.read_bytes() == source.config)
    blob.write_bytes(source.config.replace(b"amd64", b"arm64"))
    with pytest.raises(BuildError, match="holds other bytes than its digest says"):
        found.image("app")


def test_wrong_contents_are_refused(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [LOWER, UPPER])))
    (lower, _), (_, other) = found.image("app").layers
    with pytest.raises(HostileLayer, match="unpacks to other bytes than the config says"):
        unpack(found, (lower, other), tmp_path / "out", Limits())


def test_bombs_are_refused(tmp_path: Path) -> None:
    found = Layout(str(layout(tmp_path / "l", [bytes(64 << 20)])))
    with pytest.raises(HostileLayer, match="unpacks to more than"):
        unpack(found, found.image("app").layers[0], tmp_path / "out", Limits(layer_bytes=1 << 20))
    assert (tmp_path / "out").stat().st_size <= 4 << 20


def test_missing_and_truncated_blobs(tmp_path: Path) -> None:
    folder = layout(tmp_path / "l", [LOWER])
    found = Layout(str(folder))
    source = found.image("app")
    blob = folder / "blobs" / source.layers[0][0].digest.replace(":", "/")
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(BuildError, match="another size"):
        unpack(found, source.layers[0], tmp_path / "out", Limits())
    blob.unlink()
    with pytest.raises(BuildError, match="is missing"):
        unpack(found, source.layers[0], tmp_path / "out", Limits())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"imageLayoutVersion": 1}', '{"imageLayoutVersion": "2.0.0"}'])
def test_what_is_no_layout(tmp_path: Path, text: str) -> None:
    (tmp_path / "oci-layout").write_text(text)
    with pytest.raises(BuildError):
        Layout(str(tmp_path))
