"""The snapshotters that are measured: overlayfs, ours, and other lazy ones, each on a node that has no image yet.

Peers are measured by their best documented mode, where their programs are on PATH. None is bundled. stargz-snapshotter
gets an eStargz image that `ctr-remote image optimize` made of a start of the container, whose files are in front and
are prefetched. The optimiser refuses layers that leave out directories which have not changed, as those of umoci do, so
it gets one layer that buildah makes of all. SOCI gets the unchanged layers with an index, by `soci convert`. nydus gets
the image as `nydusify convert` makes it, with the files of /usr to be prefetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.container.node import Node, Service, node, service
from bench.harness.environment import cold, remove_mounts, remove_tree
from bench.harness.host import PROGRAM, Host, host
from bench.harness.programs import output, run

__all__ = ["OVERLAYFS", "Machine", "Peer", "machine", "peers_here"]

OVERLAYFS = "overlayfs"
_PROXY = """
[proxy_plugins.{name}]
  type = "snapshot"
  address = "{socket}"
"""
_RECORDED_FOR = 15  # seconds that a start is watched for

_STARGZ = """
[[resolver.host."{registry}".mirrors]]
  host = "{registry}"
  insecure = true
"""
_NYDUS = """
{{"device": {{"backend": {{"type": "registry", "config": {{"scheme": "http", "skip_verify": true}}}},
  "cache": {{"type": "blobcache", "config": {{"work_dir": "{folder}/cache"}}}}}},
 "mode": "direct", "digest_validate": false, "enable_xattr": true,
 "fs_prefetch": {{"enable": true, "threads_count": 8, "merging_size": 131072}}}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """programs: that it needs. command: of its service, of its folder. files: by name, what the folder holds, of
    registry and folder. convert: makes the image that it wants of one in the registry, given a node with overlayfs."""

    name: str
    programs: tuple[str, ...]
    command: Callable[[Path], list[str | Path]]
    files: Callable[[str, Path], dict[str, str]]
    convert: Callable[[Node, str, str], None]

    @contextmanager
    def running(self, folder: Path, registry: str) -> Iterator[Service]:
        """The service until the block ends; it answers on `folder`/snapshotter.sock. Raises BenchError."""
        remove_mounts(folder)
        remove_tree(folder)
        folder.mkdir(parents=True)
        for name, text in self.files(registry, folder).items():
            (folder / name).write_text(text)
        try:
            with service(self.name, self.command(folder), folder, {}, folder / "snapshotter.sock") as one:
                yield one
        finally:
            remove_mounts(folder)
            remove_tree(folder)


def _stargz_image(node: Node, image: str, target: str) -> None:
    address = ["--address", str(node.folder / "containerd.sock"), "--namespace", "k8s.io"]
    folders = [f"--root={node.folder}/buildah", f"--runroot={node.folder}/buildah-run", "--storage-driver=overlay"]
    name = output("buildah", *folders, "from", "--quiet", "--tls-verify=false", image).strip()
    run("buildah", *folders, "commit", "--quiet", "--squash", "--tls-verify=false", name, f"docker://{target}-flat")
    run("buildah", *folders, "rm", name)
    image = f"{target}-flat"
    run(*node.ctr, "images", "pull", "--plain-http", image)
    period = ["--period", f"{_RECORDED_FOR}"]
    run("ctr-remote", *address, "images", "optimize", "--oci", *period, image, target)
    run(*node.ctr, "images", "push", "--plain-http", target)


def _soci_image(node: Node, image: str, target: str) -> None:
    address = ["--address", str(node.folder / "containerd.sock"), "--namespace", "k8s.io"]
    run(*node.ctr, "images", "pull", "--plain-http", image)
    run("soci", *address, "convert", image, target)
    run(*node.ctr, "images", "push", "--plain-http", target)


def _nydus_image(_node: Node, image: str, target: str) -> None:
    insecure = ["--source-insecure", "--target-insecure"]
    run("nydusify", "convert", *insecure, "--source", image, "--target", target, "--prefetch-patterns", "/usr")


_PEERS = (
    Peer(
        "stargz",
        ("containerd-stargz-grpc", "ctr-remote", "buildah"),
        lambda folder: [
            *("containerd-stargz-grpc", "--address", folder / "snapshotter.sock", "--root", folder / "root"),
            *("--config", folder / "config.toml"),
        ],
        lambda registry, _folder: {"config.toml": _STARGZ.format(registry=registry)},
        _stargz_image,
    ),
    Peer(
        "soci",
        ("soci-snapshotter-grpc", "soci"),
        lambda folder: [
            *("soci-snapshotter-grpc", "--address", folder / "snapshotter.sock", "--root", folder / "root"),
            *("--config", folder / "config.toml"),
        ],
        lambda registry, _folder: {"config.toml": _STARGZ.format(registry=registry)},
        _soci_image,
    ),
    Peer(
        "nydus",
        ("containerd-nydus-grpc", "nydusd", "nydusify", "nydus-image"),
        lambda folder: [
            *("containerd-nydus-grpc", "--address", folder / "snapshotter.sock", "--root", folder / "root"),
            *("--nydusd-config", folder / "nydusd.json"),
        ],
        lambda _registry, folder: {"nydusd.json": _NYDUS.format(folder=folder)},
        _nydus_image,
    ),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A node; with our snapshotter also its host, on which the daemon runs, and the snapshotter's process."""

    node: Node
    host: Host | None = None
    snapshotter: Service | None = None


def peers_here() -> list[Peer]:
    """Peers whose programs are all on PATH."""
    return [peer for peer in _PEERS if all(shutil.which(program) for program in peer.programs)]


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
    command: list[str | Path] = [PROGRAM, "snapshotter", "--socket", socket]
    command += ["--root", beside / "root", "--stores", store]
    supervisor = here.status()["supervisor_pid"]
    with service("snapshotter", command, beside, here.environment, socket) as snapshotter:
        services = [snapshotter, Service("daemon", supervisor)]
        plugins = _PROXY.format(name="imagefs", socket=socket)
        with node(folder, "imagefs", registry, services, plugins) as made:
            yield Machine(made, here, snapshotter)


@contextmanager
def _peer(work: Path, folder: Path, name: str, registry: str) -> Iterator[Node]:
    peer = next(one for one in _PEERS if one.name == name)
    beside = work / "peer"
    with peer.running(beside, registry) as running:
        plugins = _PROXY.format(name=name, socket=beside / "snapshotter.sock")
        with node(folder, name, registry, [running], plugins) as made:
            yield made
