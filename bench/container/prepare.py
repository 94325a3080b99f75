"""How long containerd waits for the snapshot of a new container: Prepare and Mounts of an image that is warm."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from bench.cluster import BenchError
from bench.container.node import Node, said
from imagefs.format.manifest import chain_id
from imagefs.snapshotter.proto import snapshots_pb2 as wire

__all__ = ["highest_layer", "prepared"]

_CALLS = 30
_NAMESPACE = (("containerd-namespace", "k8s.io"),)
_KEPT = {"containerd.io/gc.root": "bench"}  # or else containerd collects what no container and no lease names
_SERVICE = "/containerd.services.snapshots.v1.Snapshots"


def highest_layer(layout: Path, reference: str) -> str:
    """The name that containerd gives to the snapshot of an image's highest layer. layout: OCI, with the image."""
    index = json.loads((layout / "index.json").read_text())
    named = {
        entry.get("annotations", {}).get("org.opencontainers.image.ref.name"): entry for entry in index["manifests"]
    }
    manifest = _blob(layout, named[reference]["digest"])
    return chain_id(_blob(layout, manifest["config"]["digest"]))


def prepared(node: Node, parent: str) -> float:
    """Milliseconds of Prepare and Mounts by containerd's snapshots service, the median of many. Raises BenchError."""
    times = []
    keys = [f"bench-prepare-{number}" for number in range(_CALLS)]
    try:
        for key in keys:
            begin = time.monotonic()
            _call(
                node, "Prepare", wire.PrepareRequest(snapshotter=node.snapshotter, key=key, parent=parent, labels=_KEPT)
            )
            _call(node, "Mounts", wire.KeyRequest(snapshotter=node.snapshotter, key=key))
            times.append(time.monotonic() - begin)
    finally:
        for key in keys[: len(times)]:
            _call(node, "Remove", wire.KeyRequest(snapshotter=node.snapshotter, key=key))
    return statistics.median(times) * 1000


def _call(node: Node, method: str, request: Message) -> None:
    call = node.channel.unary_unary(f"{_SERVICE}/{method}")
    try:
        call(request.SerializeToString(), metadata=_NAMESPACE, timeout=60)
    except grpc.RpcError as error:
        raise BenchError(f"{method} failed: {said(error)}") from error


def _blob(layout: Path, digest: str) -> Any:
    return json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
