"""A machine with a containerd of its own, whose folders, sockets and containers go with the `with` block.

Images are pulled by CRI, as kubelet does it, and containers run by ctr, which tells what they print. `prepared` is how
long containerd waits for the snapshot of a new container: Prepare and Mounts of an image that is warm.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from bench.harness import BenchError
from bench.harness.environment import remove_mounts, remove_tree
from bench.harness.processes import cpu_seconds, kill, matching
from bench.harness.programs import Start, output, started
from bench.harness.programs import service as running
from imagefs.format.documents import chain_id
from imagefs.snapshotter.proto import snapshots_pb2 as wire

__all__ = ["Node", "Service", "at_once", "end_node", "highest_layer", "node", "prepared", "service"]

_NAMESPACE = "k8s.io"
_TOGETHER = 20
_STARTS_WITHIN = 30.0
_PULLS_WITHIN = 600.0
_METADATA = (("containerd-namespace", _NAMESPACE),)
_PREPARED = 30  # snapshots, whose median counts
_SNAPSHOTS = "/containerd.services.snapshots.v1.Snapshots"
_KEPT = {"containerd.io/gc.root": "bench"}  # or else containerd collects what no container and no lease names

_CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "{snapshotter}"
  disable_snapshot_annotations = false
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."{registry}"]
  endpoint = ["http://{registry}"]
{plugins}
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A program beside containerd; `cpu` in seconds so far."""

    name: str
    pid: int

    @property
    def cpu(self) -> float:
        return cpu_seconds(self.pid)


class Node:
    """A containerd that answers, and the services that its snapshotter has."""

    def __init__(self, folder: Path, snapshotter: str, services: Sequence[Service], channel: grpc.Channel) -> None:
        self.folder = folder
        self.snapshotter = snapshotter
        self.channel = channel
        self._services = services
        self._started = 0

    @property
    def cpu(self) -> float:
        """Seconds of processor time of containerd and all services so far. Containers and their shims are apart."""
        return sum(one.cpu for one in self._services)

    def service(self, name: str) -> Service:
        return next(one for one in self._services if one.name == name)

    def pull(self, image: str) -> float:
        """Seconds until CRI says that the image is there. Raises BenchError."""
        name = image.encode()
        spec = b"\x0a" + _varint(len(name)) + name  # ImageSpec.image
        request = b"\x0a" + _varint(len(spec)) + spec  # PullImageRequest.image
        call = self.channel.unary_unary("/runtime.v1.ImageService/PullImage")
        begin = time.monotonic()
        try:
            call(request, timeout=_PULLS_WITHIN)
        except grpc.RpcError as error:
            raise BenchError(f"{self.snapshotter}: {image} was not pulled: {_said(error)}") from error
        return time.monotonic() - begin

    @contextmanager
    def start(self, image: str) -> Iterator[Start]:
        """A container of an image that was pulled, until it is ready. Raises BenchError."""
        self._started += 1
        name = f"bench-{os.getpid()}-{self._started}"
        with started([*self.ctr, "run", "--rm", "--snapshotter", self.snapshotter, image, name]) as start:
            yield start

    @property
    def ctr(self) -> list[str]:
        return ["ctr", "--address", str(self.folder / "containerd.sock"), "--namespace", _NAMESPACE]


def at_once(node: Node, image: str) -> float:
    """Seconds until the last of many containers that are started together is ready."""
    together, ready = threading.Barrier(_TOGETHER + 1), threading.Barrier(_TOGETHER)
    ends: list[float] = []

    def one() -> None:
        together.wait()
        try:
            with node.start(image):
                ends.append(time.monotonic())
                ready.wait()  # all of them run at the same time
        except BaseException:
            ready.abort()
            raise

    with ThreadPoolExecutor(_TOGETHER) as pool:
        done = [pool.submit(one) for _ in range(_TOGETHER)]
        together.wait()
        begin = time.monotonic()
        errors = [error for future in done if (error := future.exception()) is not None]
    if failed := [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]:
        raise BenchError(f"of {_TOGETHER} containers {len(failed)} did not start: {failed[0]}")
    return max(ends) - begin


@contextmanager
def service(
    name: str, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], ready: Path
) -> Iterator[Service]:
    """Run a program until the block ends; it answers once the socket `ready` is there. Raises BenchError."""
    with running(name, command, folder / f"{name}.log", ready.exists, environment) as pid:
        yield Service(name, pid)


@contextmanager
def node(
    folder: Path, snapshotter: str, registry: str, services: Sequence[Service] = (), plugins: str = ""
) -> Iterator[Node]:
    """A containerd with nothing in it whose CRI uses this snapshotter. plugins: further lines of its configuration.

    registry: HOST:PORT of one that answers without TLS. Raises BenchError.
    """
    folder.mkdir(parents=True)
    config = folder / "config.toml"
    config.write_text(_CONFIG.format(folder=folder, snapshotter=snapshotter, registry=registry, plugins=plugins))
    socket = folder / "containerd.sock"
    with ExitStack() as stack:
        stack.callback(end_node, folder)
        own = stack.enter_context(service("containerd", ["containerd", "--config", config], folder, {}, socket))
        channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
        made = Node(folder, snapshotter, [own, *services], channel)
        _await(channel)
        yield made


def end_node(folder: Path) -> None:
    """End what containers left whose containerd has gone, and remove the folder."""
    socket = os.fsencode(folder / "containerd.sock")
    # Shims, whose command line names the socket of this containerd.
    kill(*matching("cmdline", lambda words: words[0].endswith(b"containerd-shim-runc-v2") and socket in words))
    remove_mounts(folder)
    for entry in (folder / "state/io.containerd.runtime.v2.task" / _NAMESPACE).glob("*"):
        with suppress(BenchError):
            output("runc", "--root", f"/run/containerd/runc/{_NAMESPACE}", "delete", "--force", entry.name)
    remove_tree(folder)


def _await(channel: grpc.Channel) -> None:
    """Until the CRI plugin answers. Raises BenchError."""
    call = channel.unary_unary("/runtime.v1.ImageService/ListImages")
    deadline = time.monotonic() + _STARTS_WITHIN
    while True:
        try:
            call(b"", timeout=_STARTS_WITHIN)
            return
        except grpc.RpcError as error:
            if time.monotonic() > deadline:
                raise BenchError(f"containerd's CRI plugin does not answer: {_said(error)}") from error
        time.sleep(0.1)


def _varint(number: int) -> bytes:
    """Of the wire format of protocol buffers."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _said(error: grpc.RpcError) -> str:
    """The error in one line."""
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)


# -- the time of Prepare and Mounts ------------------------------------------------------------------------------------


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
    keys = [f"bench-prepare-{number}" for number in range(_PREPARED)]
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
    call = node.channel.unary_unary(f"{_SNAPSHOTS}/{method}")
    try:
        call(request.SerializeToString(), metadata=_METADATA, timeout=60)
    except grpc.RpcError as error:
        raise BenchError(f"{method} failed: {_said(error)}") from error


def _blob(layout: Path, digest: str) -> Any:
    return json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
