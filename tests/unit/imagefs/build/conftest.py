"""A machine that builds whatever image layout it is given, and what must be true of it afterwards."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagefs.build.image import build
from imagefs.build.pipeline import BuildOptions, open_source
from imagefs.errors import BuildError, FormatError
from imagefs.format.inodes import Inode
from imagefs.progress import Progress
from imagefs.settings import LayerLimits
from tests.support.images.layers import layout
from tests.support.images.stores import images_in

__all__ = ["MIB", "Victim", "documents", "put", "replace", "rewrite"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL = LayerLimits(
    layers=20, entries=5000, attribute_bytes=MIB, tree_bytes=GIB, layer_bytes=32 * MIB, header_bytes=64 * KIB
)


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    (tmp_path / "machine").mkdir()
    return Victim(tmp_path / "machine")


class Victim:
    """A machine that builds what it is given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("tmp", "outside"):
            (folder / name).mkdir()
        (folder / "outside" / "secret").write_text("secret")
        self._images = images_in(folder / "store")

    def layers(self, *layers: bytes, compress: Sequence[str] = ()) -> Path:
        """A layout of these, in the place of the one before."""
        shutil.rmtree(self._folder / "layout", ignore_errors=True)
        return layout(self._folder / "layout", layers, compress or [""] * len(layers))

    def build(self, path: Path, limits: LayerLimits = SMALL) -> Inode:
        with open_source(f"oci:{path}", BuildOptions(self._folder / "tmp", limits), Progress()) as tree:
            build(tree.root, tree.contents, self._images, tag="app")
            return tree.root

    def refuse(self, path: Path, words: str = ".", kind: type[Exception] = Exception) -> None:
        with pytest.raises(kind, match=words) as caught:
            self.build(path)
        assert isinstance(caught.value, BuildError | FormatError)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000
        assert self._images.tags() == {}
        assert self._images.images() == {}
        self.nothing_left()

    def nothing_left(self) -> None:
        assert list((self._folder / "tmp").iterdir()) == []
        assert {path.name for path in (self._folder / "outside").iterdir()} == {"secret"}
        assert (self._folder / "outside" / "secret").read_text() == "secret"
        assert {path.name for path in self._folder.iterdir()} <= {"store", "tmp", "outside", "layout"}


def replace(path: Path, packed: bytes, plain: bytes) -> None:
    """Let the only layer of the layout be these bytes, with all digests right."""
    index, manifest, config = documents(path)
    config["rootfs"]["diff_ids"] = [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    manifest["layers"][0].update(put(path, packed))
    manifest["config"].update(put(path, config))
    rewrite(path, index, manifest)


def documents(path: Path) -> list[Any]:
    """The index of a layout, and the manifest and the config of its first image."""
    index = json.loads((path / "index.json").read_text())
    manifest = json.loads(_blob(path, index["manifests"][0]["digest"]).read_text())
    return [index, manifest, json.loads(_blob(path, manifest["config"]["digest"]).read_text())]


def rewrite(path: Path, index: dict[str, Any], manifest: Any) -> None:
    """Let the layout have this manifest below this index."""
    index["manifests"][0].update(put(path, manifest))
    (path / "index.json").write_text(json.dumps(index))


def put(path: Path, content: Any) -> dict[str, Any]:
    """Store a document or bytes; the descriptor, but for the type."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    digest = hashlib.sha256(data).hexdigest()
    _blob(path, f"sha256:{digest}").write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _blob(path: Path, digest: str) -> Path:
    return path / "blobs" / digest.replace(":", "/")
