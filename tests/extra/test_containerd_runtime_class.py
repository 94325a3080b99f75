"""Only pods of a RuntimeClass use the snapshotter: containerd 1.7 and 2.x with `snapshotter config --runtime-class`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extra import test_containerd_2
from tests.integration.containerd import conftest
from tests.integration.containerd.conftest import base, build
from tests.support.images.layers import directory, file, layer
from tests.tools.containerd import gobuild
from tests.tools.containerd.node import Node, Registry

registry, pause = conftest.registry, conftest.pause
store, node = test_containerd_2.store, test_containerd_2.node

NODE = {"options": ("--runtime-class", "--no-systemd-cgroup")}
WAITS = ("sleep", "100000")


@pytest.fixture(scope="module", params=["1.7.35", "2.2.9", "2.4.2"])
def programs(request: pytest.FixtureRequest) -> Path:
    return gobuild.containerd(request.param)


@pytest.fixture(scope="module")
def image(node: Node, registry: Registry, store: Path) -> str:
    made = registry.push("class:1", [base(), layer(directory("data"), file("data/a", b"content"))])
    build(node, made, store)
    return made


def test_a_pull_for_the_handler_is_lazy(node: Node, image: str) -> None:
    pod = node.cri.pod("imagefs")  # which unpacks the image of the pause container
    before = set(node.blobs())
    node.cri.pull(image, handler="imagefs")
    assert len(set(node.blobs()) - before) == 2, "only the manifest and the config are fetched"
    assert node.cri.exec(node.cri.run(pod, image, WAITS), "cat", "/data/a") == (0, "content")
    node.cri.remove_pods()
    node.remove_image(image)


def test_other_pods_use_what_they_used_before(node: Node, registry: Registry, image: str) -> None:
    before = set(node.snapshots())
    node.cri.pull(image)
    container = node.cri.run(node.cri.pod(), image, WAITS)
    assert node.cri.exec(container, "cat", "/data/a") == (0, "content")
    assert set(node.snapshots()) == before
    assert set(registry.layers("class:1")) <= set(node.blobs())


def test_a_pod_of_the_class_whose_image_was_pulled_for_others(node: Node, image: str, programs: Path) -> None:
    """The kubelet that does not tell the handler: containerd 2 names the image when it unpacks, which shows it lazily.

    containerd 1.7 names the layers' chain ids alone, so that it unpacks them as for any other snapshotter.
    """
    node.cri.pull(image)
    container = node.cri.run(node.cri.pod("imagefs"), image, WAITS)
    assert node.cri.exec(container, "cat", "/data/a") == (0, "content")
    assert bool(node.pool()) is not programs.name.startswith("containerd-1.")
