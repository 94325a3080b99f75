"""A registry for all tests, and a node for those of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.images.layers import directory, file, layer, symlink
from tests.tools.containerd.node import Node, Registry

BUSYBOX = Path("/bin/busybox")
WAITS = ("sleep", "100000")


def base() -> bytes:
    """A layer with busybox and a shell."""
    program = BUSYBOX.read_bytes()
    names = ["sh", "cat", "echo", "ls", "sleep", "touch", "stat", "id", "find", "md5sum", "rm", "mkdir", "head", "wc"]
    return layer(
        directory("bin"),
        file("bin/busybox", program, mode=0o755),
        *(symlink(f"bin/{name}", "busybox") for name in names),
        directory("etc"),
        file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n"),
        directory("tmp", mode=0o1777),
    )


def build(node: Node, image: str, store: Path) -> str:
    """Build a container image into the store; the digest there."""
    return node.imagefs("build", f"docker://{image}", str(store), "--no-src-tls-verify", "--quiet").strip()


def lazy(node: Node, registry: Registry, store: Path, name: str, *layers: bytes, **config: Any) -> tuple[str, str]:
    """An image of the base and these layers that is in the store and pulled; its reference, and its digest there."""
    image = registry.push(f"{name}:1", [base(), *layers], **config)
    digest = build(node, image, store)
    node.cri.pull(image)
    return image, digest


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with contextlib.closing(Registry(tmp_path_factory.mktemp("registry"))) as made:
        yield made


@pytest.fixture(scope="session")
def pause(registry: Registry) -> str:
    """The image that a pod runs besides its containers."""
    return registry.push("pause:1", [base()], Entrypoint=["/bin/sleep", "100000"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store where images are looked for."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, store: Path, pause: str) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path_factory.mktemp("node"), stores=[str(store)], pause=pause)) as made:
        made.start()
        yield made


@pytest.fixture
def pod(node: Node) -> Iterator[str]:
    yield node.cri.pod()
    node.cri.remove_pods()
