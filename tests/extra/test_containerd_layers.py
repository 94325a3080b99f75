"""As many layers as an image may have."""

from __future__ import annotations

from pathlib import Path

from tests.integration.containerd import conftest
from tests.integration.containerd.test_pull import check_layers
from tests.tools.containerd.node import Node, Registry

registry, pause, store, node = conftest.registry, conftest.pause, conftest.store, conftest.node


def test_127_layers(node: Node, registry: Registry, store: Path) -> None:
    check_layers(node, registry, store, 127)
