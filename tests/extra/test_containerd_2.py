"""containerd 2.x with the configuration that `imagefs snapshotter config` prints for it."""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.doctor.services import containerd_facts, judge_containerd
from imagefs.snapshotter.containerd_config import IMAGES_PLUGIN, TRANSFER_PLUGIN
from tests.integration.containerd import conftest, test_lifecycle, test_pull
from tests.integration.containerd.conftest import base, build
from tests.support.images.layers import directory, file, layer
from tests.tools.containerd import gobuild
from tests.tools.containerd.node import Node, Registry

registry, pause, pod = conftest.registry, conftest.pause, conftest.pod
image = test_lifecycle.image


@pytest.fixture(scope="module", params=["2.2.9", "2.4.2"])
def programs(request: pytest.FixtureRequest) -> Path:
    return gobuild.containerd(request.param)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, store: Path, pause: str, programs: Path
) -> Iterator[Node]:
    """With the module's `NODE` for its options, if there is one."""
    folder, options = tmp_path_factory.mktemp("node"), getattr(request.module, "NODE", {})
    with contextlib.closing(Node(folder, stores=[str(store)], pause=pause, programs=programs, **options)) as made:
        made.start()
        yield made


test_a_lazy_image_is_not_fetched = test_pull.test_a_lazy_image_is_not_fetched
test_an_image_that_shares_its_base_with_a_lazy_one = test_pull.test_an_image_that_shares_its_base_with_a_lazy_one
test_an_image_whose_layers_are_the_lowest_of_another = test_pull.test_an_image_whose_layers_are_the_lowest_of_another
test_a_containerd_that_is_restarted = test_lifecycle.test_a_containerd_that_is_restarted
test_a_machine_that_starts_again = test_lifecycle.test_a_machine_that_starts_again


def transfer(node: Node, image: str) -> list[str]:
    """Pull by the transfer service; digests of the layers that were fetched."""
    before = set(node.blobs())
    node.ctr("images", "pull", "--plain-http", "--snapshotter", "imagefs", image)
    return sorted(set(node.blobs()) - before)


def test_containerd_reads_the_configuration(node: Node, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table that we print is one of its own, the plugins work with it, and `imagefs doctor` finds nothing."""
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    socket, root = str(node.folder / "snapshotter.sock"), str(node.root)
    found = judge_containerd(containerd_facts(str(node.folder / "config.toml")), socket, root)
    assert {one.check for one in found if one.state == "ok"} >= {"containerd.version", "containerd.running"}
    assert [one for one in found if one.state != "ok"] == []
    config = tomllib.loads(node.containerd("config", "dump"))
    assert config["proxy_plugins"]["imagefs"]["exports"]["enable_remote_snapshot_annotations"] == "true"
    images = config["plugins"][IMAGES_PLUGIN]
    assert (images["snapshotter"], images["disable_snapshot_annotations"]) == ("imagefs", False)
    unpack = config["plugins"][TRANSFER_PLUGIN]["unpack_config"]
    assert [one["snapshotter"] for one in unpack] == ["imagefs", "overlayfs"]
    rows = [line.split() for line in node.ctr("plugins", "ls").stdout.splitlines()]
    states = {(row[0], row[1]): row[-1] for row in rows if len(row) >= 4}
    assert states["io.containerd.snapshotter.v1", "imagefs"] == "ok"
    assert states["io.containerd.transfer.v1", "local"] == "ok"
    assert states["io.containerd.cri.v1", "images"] == "ok"


def test_the_transfer_service_does_not_fetch_a_lazy_image(node: Node, registry: Registry, store: Path) -> None:
    layers = [base(), layer(directory("data"), file("data/a", b"a")), layer(file("data/b", b"b"), file("data/.wh.a"))]
    image = registry.push("transfer:lazy", layers)
    build(node, image, store)
    fetched = transfer(node, image)
    assert len(fetched) == 2, "only the manifest and the config are fetched"
    assert node.run(image, "transfer-lazy", "ls", "/data").split() == ["b"]


def test_the_transfer_service_pulls_an_unknown_image_as_always(node: Node, registry: Registry) -> None:
    """It fetches all layers but those that a lazy image has too."""
    layers = [base(), layer(directory("data"), file("data/o", b"o")), layer(file("data/p", b"p"), file("data/.wh.o"))]
    image = registry.push("transfer:ordinary", layers)
    fetched = transfer(node, image)
    assert set(registry.layers("transfer:ordinary")[1:]) <= set(fetched)
    assert node.run(image, "transfer-ordinary", "ls", "/data").split() == ["p"]


def test_an_image_in_two_namespaces(node: Node, registry: Registry, store: Path) -> None:
    """They share the snapshots of lazy layers, which stay until the last of them has let the image go."""
    image = registry.push("namespaces:1", [base(), layer(directory("data"), file("data/n", b"n")), layer(file("n"))])
    build(node, image, store)
    other = ("--namespace", "other")
    before = set(node.snapshots())
    transfer(node, image)
    node.ctr(*other, "images", "pull", "--plain-http", "--snapshotter", "imagefs", image)
    assert len(node.ctr(*other, "content", "ls", "--quiet").stdout.split()) == 2
    node.remove_image(image)
    run = ("run", "--rm", "--snapshotter", "imagefs", image, "elsewhere", "ls", "/data")
    assert node.ctr(*other, *run).stdout.split() == ["n"]
    node.ctr(*other, "images", "rm", "--sync", image)
    assert set(node.snapshots()) == before
