"""The manifests that people copy from deploy/kubernetes, as documents."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.checkout import CHECKOUT

__all__ = ["DEPLOY", "MANIFESTS", "containers", "pod_spec"]

DEPLOY = CHECKOUT / "deploy"

MANIFESTS: dict[str, dict[str, Any]] = {
    f"{path.name}/{document['kind']}": document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
"""By FILE/KIND."""


def pod_spec(document: dict[str, Any]) -> dict[str, Any]:
    """The specification of the pods of a Pod or a DaemonSet."""
    spec: dict[str, Any] = document["spec"]
    return spec["template"]["spec"] if document["kind"] == "DaemonSet" else spec


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a Pod or a DaemonSet, in the order in which they start."""
    spec = pod_spec(document)
    return [*spec.get("initContainers", []), *spec["containers"]]
