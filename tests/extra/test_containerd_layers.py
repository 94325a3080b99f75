"""As many layers as an image may have."""

from __future__ import annotations

from pathlib import Path

from tests.containerd import conftest
from tests.containerd.node import Node, Registry
from tests.containerd.test_pull import check_layers

registry, pause, store, node = conftest.registry, conftest.pause, conftest.store, conftest.node


def test_127_layers(node: Node, registry: Registry, store: Path) -> None:
    check_layers(node, registry, store, 127)
