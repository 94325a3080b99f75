"""Lazy images that are attached to container images in their registry, with no store configured."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.containerd.conftest import WAITS, base
from tests.support.images.layers import directory, file, layer
from tests.tools.containerd.node import Node, Registry
from tests.tools.registry import push_image, running_registry


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, pause: str) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path_factory.mktemp("node"), stores=[], pause=pause)) as made:
        made.start()
        yield made


def convert(node: Node, image: str) -> None:
    node.imagefs("convert", f"docker://{image}", "--plain-http")


def requests_of_imagefs(registry: Registry, name: str) -> list[str]:
    """Lines of the access log about requests of ours to the repository `name`."""
    lines = [line for line in registry.requested().splitlines() if line.startswith("127.0.0.1 - ")]
    return [line for line in lines if f" /v2/{name}/" in line and '"imagefs/' in line]


def test_a_registry_that_wants_a_password(node: Node, tmp_path: Path) -> None:
    """The daemon has it from Docker's configuration; while it does not, the image is pulled in full."""
    node.stop("daemon")
    node.environment["DOCKER_CONFIG"] = str(tmp_path)
    try:
        with running_registry(tmp_path / "registry", htpasswd=True) as address:
            auths = {"auths": {address: {"auth": base64.b64encode(b"ann:secret").decode()}}}
            (tmp_path / "config.json").write_text(json.dumps(auths))
            layers = [base(), layer(file("private", b"1"))]
            image = push_image(tmp_path, address, "private:1", layers, user="ann:secret")
            node.imagefs("convert", f"docker://{image}", "--plain-http", "--authfile", str(tmp_path / "config.json"))
            for known, fetched in ((False, 4), (True, 2)):  # the manifest and the config, and both layers
                (tmp_path / "config.json").write_text(json.dumps(auths if known else {}))
                node.start_daemon()
                before = set(node.blobs())
                node.cri.pull(image, "ann", "secret")
                assert len(set(node.blobs()) - before) == fetched
                assert node.run(image, f"private{known}", "cat", "/private") == "1"
                node.remove_image(image)
                node.stop("daemon")
    finally:
        del node.environment["DOCKER_CONFIG"]
        node.start_daemon()


def test_a_converted_image_is_not_fetched(node: Node, registry: Registry, pod: str) -> None:
    """And once its blocks are here, a container starts while the registry is away."""
    content = random.Random(1).randbytes(1 << 20)
    image = registry.push("attached/app:1", [base(), layer(directory("data"), file("data/a", content))])
    convert(node, image)
    before = set(node.blobs())
    node.cri.pull(image)
    assert len(set(node.blobs()) - before) == 2, "only the manifest and the config are fetched"
    read = ("sh", "-c", "cat /bin/busybox /etc/passwd /data/a | md5sum")
    first = node.cri.exec(node.cri.run(pod, image, WAITS), *read)
    assert first[0] == 0
    registry.close()
    try:
        assert node.cri.exec(node.cri.run(pod, image, WAITS), *read) == first
    finally:
        registry.start()


def test_an_ordinary_image_costs_one_request(node: Node, registry: Registry) -> None:
    first = registry.push("ordinary/first:1", [base(), layer(file("first", b"1"))])
    node.cri.pull(first)  # the daemon learns that this registry knows no referrers
    image = registry.push("ordinary/app:1", [base(), *(layer(file(f"app{number}", b"1")) for number in range(5))])
    node.cri.pull(image)
    assert len(requests_of_imagefs(registry, "ordinary/app")) == 1
    assert node.run(image, "ordinary", "ls", "/app4").strip() == "/app4"
