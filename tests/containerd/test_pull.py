"""Images that are pulled through CRI, and containers that are started from them."""

from __future__ import annotations

from pathlib import Path

from tests.containerd.conftest import base
from tests.containerd.node import Node, Registry
from tests.unit.imagefs.layers import directory, file, layer


def test_an_unknown_image_is_pulled_as_always(node: Node, registry: Registry) -> None:
    image = registry.push("ordinary:1", [base(), layer(directory("data"), file("data/a", b"content"))])
    node.cri.pull(image)
    assert node.run(image, "ordinary", "cat", "/data/a") == "content"


def test_a_lazy_image(node: Node, registry: Registry, store: Path) -> None:
    image = registry.push("lazy:1", [base(), layer(directory("data"), file("data/a", b"content" * 100_000))])
    node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify")
    before = set(node.blobs())
    node.cri.pull(image)
    assert len(set(node.blobs()) - before) == 2, "only the manifest and the config are fetched"
    assert node.run(image, "lazy", "sh", "-c", "cat /data/a | wc -c") == "700000\n"
