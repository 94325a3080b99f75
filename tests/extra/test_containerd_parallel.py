"""Layers that containerd 2.4 unpacks side by side: it names the parent of a snapshot when it commits it."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.extra import test_containerd_2
from tests.integration.containerd import conftest
from tests.integration.containerd.conftest import base, build
from tests.support.images.layers import directory, file, layer
from tests.support.waiting import eventually
from tests.tools.containerd import gobuild
from tests.tools.containerd.node import Node, Registry

registry, pause, store, node = conftest.registry, conftest.pause, conftest.store, test_containerd_2.node

NODE = {"parallel": True}

FAMILY = [
    base(),
    layer(directory("d"), file("d/gone", b"1"), file("d/stays", b"1"), directory("o"), file("o/below", b"1")),
    layer(file("d/.wh.gone"), directory("o"), file("o/.wh..wh..opq"), file("o/above", b"1")),
]


@pytest.fixture(scope="module")
def programs() -> Path:
    return gobuild.containerd("2.4.2")


def pull(node: Node, image: str) -> set[str]:
    """Digests of what was fetched. containerd's log says whether layers were unpacked side by side."""
    before, log = set(node.blobs()), len(node.log("containerd"))
    node.ctr("images", "pull", "--plain-http", "--snapshotter", "imagefs", image)
    assert "parallel=true" in node.log("containerd")[log:]
    return set(node.blobs()) - before


def look(node: Node, image: str, name: str) -> list[str]:
    return node.run(image, name, "sh", "-c", "find /d /o | sort").split()


def test_ordinary_layers_with_whiteouts(node: Node, registry: Registry) -> None:
    image = registry.push("parallel:ordinary", [*FAMILY, layer(file("ordinary", b"1"))])
    assert len(pull(node, image)) == 2 + 4
    assert look(node, image, "ordinary") == ["/d", "/d/stays", "/o", "/o/above"]
    node.remove_image(image)
    assert not [name for name in node.snapshots() if "extract" in name]


def test_a_lazy_image_is_not_fetched(node: Node, registry: Registry, store: Path) -> None:
    image = registry.push("parallel:lazy", FAMILY)
    build(node, image, store)
    assert len(pull(node, image)) == 2, "only the manifest and the config are fetched"
    assert look(node, image, "lazy") == ["/d", "/d/stays", "/o", "/o/above"]
    chain = [parent for parent, kind in node.snapshots().values() if kind == "Committed"]
    assert len([parent for parent in chain if parent]) >= len(FAMILY) - 1, "each layer has its parent"


def test_an_ordinary_image_above_layers_of_a_lazy_one(node: Node, registry: Registry, store: Path) -> None:
    lazy = registry.push("parallel:below", [*FAMILY, layer(file("lazy", b"1"))])
    build(node, lazy, store)
    pull(node, lazy)
    other = registry.push("parallel:above", [*FAMILY, layer(file("d/other", b"1"), file("d/.wh.stays"))])
    assert registry.layers("parallel:above")[-1] in pull(node, other)
    assert look(node, other, "above") == ["/d", "/d/other", "/o", "/o/above"]
    assert look(node, lazy, "below") == ["/d", "/d/stays", "/o", "/o/above"]
    node.remove_image(lazy)
    assert look(node, other, "above-again") == ["/d", "/d/other", "/o", "/o/above"]
    node.remove_image(other)


def test_a_pod_of_an_image_that_another_snapshotter_unpacked(node: Node, registry: Registry, store: Path) -> None:
    """CRI unpacks it again for this snapshotter, in parallel, and tells which image it is."""
    image = registry.push("parallel:elsewhere", [*FAMILY, layer(file("elsewhere", b"1")), layer(file("d/new", b"1"))])
    build(node, image, store)
    node.ctr("images", "pull", "--plain-http", "--snapshotter", "overlayfs", image)
    pod, log, mounted = node.cri.pod(), len(node.log("containerd")), node.pool()
    container = eventually(lambda: _created(node, pod, image), "CRI to hear of the image")
    assert "parallel=true" in node.log("containerd")[log:]
    node.cri.start(container)
    assert node.cri.exec(container, "ls", "/d") == (0, "new\nstays\n")
    assert len(node.pool()) > len(mounted)


def _created(node: Node, pod: str, image: str) -> str:
    try:
        return node.cri.create(pod, image, ("sleep", "100000"))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return ""
