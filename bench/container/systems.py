"""The snapshotters that are measured: each as a node on which nothing of any image is yet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.container.node import Node, Service, node, service
from bench.container.peers import PEER_SERVICES, Peer
from bench.host import PROGRAM, Host, host
from bench.tools import cold

__all__ = ["OVERLAYFS", "Machine", "machine", "peers_here"]

OVERLAYFS = "overlayfs"
_PROXY = """
[proxy_plugins.{name}]
  type = "snapshot"
  address = "{socket}"
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node; with our snapshotter also its host, on which the daemon runs, and the snapshotter's process."""

    node: Node
    host: Host | None = None
    snapshotter: Service | None = None


def peers_here() -> list[Peer]:
    """Peers whose programs are all on PATH."""
    return [peer for peer in PEER_SERVICES if all(shutil.which(program) for program in peer.programs)]


@contextmanager
def machine(work: Path, system: str, registry: str, store: str = "") -> Iterator[Machine]:
    """Everything up, caches of the machine dropped. system: "overlayfs", "imagefs" or the name of a peer.

    store: where our snapshotter looks for images. Raises BenchError.
    """
    folder = work / "node"
    with ExitStack() as stack:
        if system == "imagefs":
            here = stack.enter_context(host(work))
            made = stack.enter_context(_ours(work, folder, here, registry, store))
        elif system == OVERLAYFS:
            made = Machine(stack.enter_context(node(folder, OVERLAYFS, registry)))
        else:
            made = Machine(stack.enter_context(_peer(work, folder, system, registry)))
        cold()
        yield made


@contextmanager
def _ours(work: Path, folder: Path, here: Host, registry: str, store: str) -> Iterator[Machine]:
    beside = work / "host/snapshotter"
    beside.mkdir()
    socket = beside / "snapshotter.sock"
    command: list[str | Path] = [
        PROGRAM,
        "snapshotter",
        "--socket",
        socket,
        "--root",
        beside / "root",
        "--stores",
        store,
    ]
    supervisor = here.status()["supervisor_pid"]
    with service("snapshotter", command, beside, here.environment, socket) as snapshotter:
        services = [snapshotter, Service("daemon", supervisor)]
        plugins = _PROXY.format(name="imagefs", socket=socket)
        with node(folder, "imagefs", registry, services, plugins) as made:
            yield Machine(made, here, snapshotter)


@contextmanager
def _peer(work: Path, folder: Path, name: str, registry: str) -> Iterator[Node]:
    peer = next(one for one in PEER_SERVICES if one.name == name)
    beside = work / "peer"
    with peer.running(beside, registry) as running:
        plugins = _PROXY.format(name=name, socket=beside / "snapshotter.sock")
        with node(folder, name, registry, [running], plugins) as made:
            yield made
