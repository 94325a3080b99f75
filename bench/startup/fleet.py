"""The surroundings of all starts of a job: HDFS with the checkpoint, registry, package index, images and snapshots.

`Fleet` is made once, and `bench.startup.systems.prepare` then has the job started for the first times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.cluster import Cluster, Say, running
from bench.deps.node import Job, Node, answered, interpreter, published
from bench.deps.recipe import INSTALLER, recipes
from bench.deps.wheels import fetch, lay_out
from bench.host import await_hot, host
from bench.image import lazy
from bench.image.recipe import JOB_RECIPES
from bench.image.source import Image, Source
from bench.link import Link, linked
from bench.programs import output, run
from bench.startup import order
from bench.startup.accelerator import Accelerator
from bench.startup.plan import Size
from bench.tools import remove_tree

__all__ = ["TAG", "WHEELS", "Fleet", "fleet", "pins_of", "publish_for_hosts"]

TAG = "job"
_PINS = Path(__file__).parents[1] / "deps/requirements.txt"
WHEELS = Path("~/.cache/bootseer/bench-deps/wheels").expanduser()
"""The same that `bench deps` takes."""


@dataclass(frozen=True)
class Fleet:
    """Where everything is. `work` is a folder of this benchmark alone, `name` that of the HDFS instance."""

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
        return output(Path(__file__).parents[2] / "scripts/hdfs-cluster", "jars").strip()


def pins_of(size: Size) -> list[str]:
    known = recipes(_PINS.read_text())["standard"]
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
        say("pushing the image to the registry")
        run("skopeo", "copy", "--dest-tls-verify=false", image.name, f"docker://{made.reference}")
        say("building the image into a store")
        for folder in (made.store, made.host_store):
            remove_tree(folder)
        lazy.build(image.name, made.store, TAG)
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
