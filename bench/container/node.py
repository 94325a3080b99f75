"""A machine with a containerd of its own, whose folders, sockets and containers go with the `with` block.

Images are pulled by CRI, as kubelet does it, and containers run by ctr, which tells what they print.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from bench.cluster import BenchError
from bench.processes import cpu_seconds
from bench.programs import output
from bench.started import Start, started
from bench.tools import remove_mounts, remove_tree

__all__ = ["Node", "Service", "at_once", "end_node", "node", "said", "service"]

_NAMESPACE = "k8s.io"
_TOGETHER = 20
_STARTS_WITHIN = 30.0
_PULLS_WITHIN = 600.0
_ENDS_WITHIN = 20.0

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
            raise BenchError(f"{self.snapshotter}: {image} was not pulled: {said(error)}") from error
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
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command),
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # a ^C is ours to handle
        )
    try:
        deadline = time.monotonic() + _STARTS_WITHIN
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise BenchError(f"{name} did not start: {words[-1]}")
            time.sleep(0.05)
        yield Service(name, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
    for pid in _processes(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remove_mounts(folder)
    for entry in (folder / "state/io.containerd.runtime.v2.task" / _NAMESPACE).glob("*"):
        with contextlib.suppress(BenchError):
            output("runc", "--root", f"/run/containerd/runc/{_NAMESPACE}", "delete", "--force", entry.name)
    remove_tree(folder)


def _processes(folder: Path) -> list[int]:
    """Shims, whose command line names the socket of this containerd."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"containerd-shim-runc-v2") and os.fsencode(folder / "containerd.sock") in words:
                    found.append(int(entry.name))
    return found


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
                raise BenchError(f"containerd's CRI plugin does not answer: {said(error)}") from error
        time.sleep(0.1)


def _varint(number: int) -> bytes:
    """Of the wire format of protocol buffers."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def said(error: grpc.RpcError) -> str:
    """In one line."""
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)
