"""The surroundings of all starts of a job: HDFS with the checkpoint, registry, package index, images, snapshots, nodes.

`Fleet` is made once, and `bench.startup.systems.prepare` then has the job started for the first times.

`namespaces` are nodes, each with a link of its own to the servers, and a way to HDFS. The link is like that of
`bench.harness.link`, a veth with a token bucket at both ends, into the same namespace of servers, so that the delaying
proxy answers here too. The way to HDFS ends in the namespace of its router, behind which DataNodes have their own caps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.deps.measure import PINS
from bench.deps.measure import WORK as DEPS
from bench.deps.node import Job, Node, answered, interpreter, published
from bench.deps.plan import INSTALLER, recipes
from bench.deps.wheels import fetch, lay_out
from bench.harness import ROOT, Say, netns
from bench.harness.cluster import Cluster, running
from bench.harness.environment import remove_tree
from bench.harness.host import await_hot, host
from bench.harness.link import NAMESPACE as SERVERS
from bench.harness.link import SERVER, Link, linked
from bench.harness.programs import output
from bench.image import runtime
from bench.image.measure import push
from bench.image.recipe import JOB_RECIPES
from bench.image.source import Image, Source
from bench.startup import order
from bench.startup.accelerator import Accelerator
from bench.startup.plan import Size

__all__ = ["TAG", "WHEELS", "Fleet", "fleet", "namespaces", "pins_of", "publish_for_hosts"]

TAG = "job"
WHEELS = DEPS / "wheels"
"""The same that `bench deps` takes."""

_NODE = "bench-node"
"""The names of nodes begin so."""


@dataclass(frozen=True)
class Fleet:
    """Paths and parts of one fleet. `work` is a folder of this benchmark alone, `name` that of the HDFS instance."""

    work: Path
    size: Size
    cluster: Cluster
    link: Link
    image: Image
    python: Path
    say: Say
    accelerator: Accelerator

    @property
    def pins(self) -> list[str]:
        return pins_of(self.size)

    @property
    def index(self) -> str:
        return f"{self.link.url}/index/simple/"

    @property
    def reference(self) -> str:
        """The image in the registry."""
        return f"{self.link.registry}/bench:{self.image.reference}"

    @property
    def store(self) -> Path:
        """Images and snapshots of containers, as nginx serves them."""
        return self.link.folder / "store"

    @property
    def host_store(self) -> Path:
        """Snapshots of directories of hosts."""
        return self.link.folder / "host-store"

    @cached_property
    def checksum(self) -> str:
        """The checksum that every job has to print."""
        return order.checksum(self.size)

    @property
    def folder(self) -> str:
        """Of the checkpoint, below /bench in HDFS."""
        return str(Path(self.size.files[0].name).parent)

    def deps_node(self) -> Node:
        """A host that installs the packages, or mounts them, into a directory: one path, which is part of their key."""
        requirements = self.work / "requirements.txt"
        requirements.write_text("".join(f"{pin}\n" for pin in self.pins))
        return Node(self.work / "deps", Job(self.python, self.index, requirements, self.size.modules))

    @property
    def jars(self) -> str:
        """Of Hadoop, a folder."""
        return output(ROOT / "scripts/hdfs-cluster", "jars").strip()


def pins_of(size: Size) -> list[str]:
    known = recipes(PINS.read_text())["standard"]
    return [pin for pin in known.pins if not size.packages or pin.partition("==")[0] in size.packages]


@contextmanager
def fleet(
    work: Path, images: Path, size: Size, name: str, say: Say, *, mirror: str, keep: bool, accelerator: Accelerator
) -> Iterator[Fleet]:
    """Everything up, no rate limited. images: the work folder of `bench image`. accelerator: what containers get of it.

    Raises BenchError.
    """
    image = Source(images, say, mirror).image(JOB_RECIPES[size.name], 1)
    pins = pins_of(size)
    fetch([*pins, INSTALLER], WHEELS, say)
    with ExitStack() as stack:
        cluster = stack.enter_context(running(name, say, keep=keep, datanodes=size.datanodes))
        cluster.set_rate(0)
        cluster.write(size.files, say)
        wire = stack.enter_context(linked(work, work / "served", registry=True))
        lay_out(WHEELS, pins, wire.folder / "index")
        made = Fleet(work, size, cluster, wire, image, interpreter(work / "python", WHEELS), say, accelerator)
        push(image, wire, say)
        say("building the image into a store")
        for folder in (made.store, made.host_store):
            remove_tree(folder)
        runtime.build(image.name, made.store, TAG)
        yield made


def publish_for_hosts(made: Fleet) -> None:
    """The packages as a snapshot of a host's directory, and a start with it recorded. Raises BenchError."""
    with host(made.work) as here:
        made.deps_node().imagefs(here, str(made.host_store))
        published(here)
    node = made.deps_node()
    with host(made.work) as here:
        answered(node.imagefs(here, str(made.host_store)))
        node.imports()
        here.ready()
        if made.size.hot:
            await_hot(made.host_store)
    remove_tree(made.work / "deps")


# -- nodes -------------------------------------------------------------------------------------------------------------


@contextmanager
def namespaces(count: int, cluster: Cluster, rate: float) -> Iterator[list[str]]:
    """The names of so many, until the block ends. rate: bytes a second of each link to the servers.

    Those that a killed benchmark left are removed first.
    """
    netns.remove(_NODE)
    try:
        yield [_node(number, cluster, rate) for number in range(1, count + 1)]
    finally:
        netns.remove(_NODE)


def _node(number: int, cluster: Cluster, rate: float) -> str:
    name = f"{_NODE}{number}"
    netns.add(name)
    _join(name, "eth0", SERVERS, 254, number)
    for namespace, link in ((name, "eth0"), (SERVERS, f"node{number}")):
        netns.set_rate(namespace, link, rate)
    netns.ip(name, "route", "add", f"{SERVER}/32", "via", _address(254, number, 1), "dev", "eth0")
    _join(name, "eth1", cluster.router, 253, number)
    netns.ip(name, "route", "add", cluster.network, "via", _address(253, number, 1), "dev", "eth1")
    return name


def _join(name: str, own: str, other: str, third: int, number: int) -> None:
    """A link from `own` in the node to node{number} in another namespace."""
    link = f"node{number}"
    netns.veth(other, link, name, own)
    for namespace, end, last in ((other, link, 1), (name, own, 2)):
        netns.bring_up(namespace, end, f"{_address(third, number, last)}/30")


def _address(third: int, number: int, last: int) -> str:
    return f"198.19.{third}.{4 * number + last}"
