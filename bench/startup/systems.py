"""One start of the job on one node, by the techniques of a system.

A `Machine` is a node: its folder, the services that run on it before a job comes (containerd, the daemon of imagefs)
and its caches. `Machine.start` takes the job from the request to its first step. Steps that a system takes before the
container are events of the source `bench`, in the same spool folder as those of the job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.container.node import end_node
from bench.container.node import node as containerd
from bench.deps.node import answered, published
from bench.harness import BenchError, mounts
from bench.harness.environment import remove_mounts, remove_tree
from bench.harness.host import PROGRAM, Host, await_hot, await_plan, host
from bench.harness.mounts import Mount
from bench.harness.processes import machine_cpu_seconds
from bench.harness.programs import inside, output, run, started
from bench.startup import order
from bench.startup.fleet import TAG, Fleet, publish_for_hosts
from bench.startup.plan import SYSTEMS, System
from bench.startup.stages import Course, course, read_events
from bench.startup.unpack import bundle, container
from stripefs.settings import default_budget
from stripefs.startup_events import ENV_FOLDER, ENV_JOB, ENV_RUN, ProcessIdentity, Writer

__all__ = ["Machine", "machine", "prepare", "tidy"]

_JOB = "bench-startup"
MB = 1e6


@contextmanager
def machine(fleet: Fleet, system: System, folder: Path, namespace: str = "") -> Iterator[Machine]:
    """A node in `folder` that has nothing yet, whose services run. namespace: of its network, "" for this machine's."""
    tidy(folder)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(tidy, folder)
        yield Machine(fleet, system, folder, namespace, stack)


def prepare(fleet: Fleet, *, hosts: bool) -> None:
    """Start the job for the first times in its fleet, so that a later start finds what these published and recorded.

    The first start installs and publishes, the second one records what a start touches of image and packages. No rate
    is limited meanwhile. hosts: whether there is to be a snapshot of the packages for directories of hosts as well.
    Raises BenchError.
    """
    for number, words in enumerate(("publishing what the job installs", "recording a start")):
        fleet.say(words)
        with machine(fleet, SYSTEMS["all"], fleet.work / "first") as made:
            made.store = str(fleet.store)
            made.start(f"prepare-{number}")
            if number == 0:
                made.await_published()
            else:
                await_plan(fleet.store)
                if fleet.size.hot:
                    await_hot(fleet.store)
    output(PROGRAM, "optimize", f"{fleet.store}#{TAG}")
    if hosts:
        publish_for_hosts(fleet)


def tidy(folder: Path) -> None:
    """Take away what a node has, or what a killed benchmark left of it."""
    Host(folder / "host").stop()
    end_node(folder / "containerd")
    remove_mounts(folder)
    remove_tree(folder)


class Machine:
    """A node with what runs there before a job comes. One start at a time."""

    def __init__(self, fleet: Fleet, system: System, folder: Path, namespace: str, stack: ExitStack) -> None:
        self._fleet, self._system = fleet, system
        self._folder, self._namespace = folder, namespace
        self.store = f"{fleet.link.url}/store"
        self._host: Host | None = None
        if system.image == "lazy" or system.dependencies == "snapshot":
            self._host = stack.enter_context(host(folder, namespace=namespace))
        self._containerd = None
        if system.image == "pull":
            registry = fleet.link.registry
            self._containerd = stack.enter_context(containerd(folder / "containerd", "overlayfs", registry))

    def start(self, run_name: str) -> tuple[Course, dict[str, float]]:
        """From the request to the first step, with the page cache as it is; the figures of the start.

        Raises BenchError, also where the job has loaded other bytes than the checkpoint has.
        """
        fleet, system = self._fleet, self._system
        job = self._folder / "job"
        install = order.install_command(system.dependencies) if system.dependencies != "snapshot" else None
        stream = fleet.cluster.url if system.checkpoint == "stream" else ""
        told = {
            "install": install,
            "packages": order.PACKAGES,
            "stream": stream,
            "gpu": bool(fleet.accelerator.devices),
        }
        spool = order.lay_out(job, fleet.size, fleet.pins, told)
        who = ProcessIdentity(job=_JOB, run=run_name, node=self._namespace or "node")
        events = Writer(str(spool), who, "bench")
        moved, cpu, datanodes = fleet.link.moved(), machine_cpu_seconds(), fleet.cluster.datanode_cpu()
        begin = time.monotonic()
        with ExitStack() as stack:
            binds = {str(job): order.JOB, **fleet.accelerator.binds}
            if (folder := self._checkpoint(events, stack)) is not None:
                binds[str(folder)] = order.CHECKPOINT
            image = self._image(events)
            if system.dependencies == "snapshot" and system.image != "lazy":
                binds[str(self._dependencies(events, stack))] = order.PACKAGES
            command = stack.enter_context(self._command(image, binds, run_name))
            events.instant("container", "launch")
            with started(command, self._environment(spool, run_name)) as start:
                values = {
                    "moved": (fleet.link.moved() - moved) / MB,
                    "cpu": machine_cpu_seconds() - cpu,
                    "datanode_cpu": fleet.cluster.datanode_cpu() - datanodes,
                }
                self._check(start.said)
                events.close(5.0)
                found = course(begin, read_events(spool))
                if system.image == "lazy" and self._host is not None:
                    self._host.await_local()
        return found, found.values() | values

    def await_published(self) -> None:
        """Until others find what a first start installed. Raises BenchError."""
        assert self._host is not None
        published(self._host)

    def _check(self, said: dict[str, Any]) -> None:
        if said["checksum"] != self._fleet.checksum:
            raise BenchError(f"the job of {self._system.name} loaded other bytes than the checkpoint has")

    def _environment(self, spool: Path, run_name: str) -> dict[str, str]:
        """The environment of the program that runs the container on the node."""
        own = {ENV_FOLDER: str(spool), ENV_JOB: _JOB, ENV_RUN: run_name}
        return os.environ | own | (self._host.environment if self._host else {})

    # -- image ---------------------------------------------------------------------------------------------------------

    def _image(self, events: Writer) -> Path | None:
        """Bring what has to be there before a container can be run; a bundle where that is what is run."""
        if self._containerd is not None:
            with events.begin("image", "pull"):
                self._containerd.pull(self._fleet.reference)
        if self._system.image == "parallel":
            with events.begin("image", "parallel pull"):
                return bundle(self._fleet.reference, self._folder / "unpacked")
        return None

    @contextmanager
    def _command(self, unpacked: Path | None, binds: dict[str, str], run_name: str) -> Iterator[list[str]]:
        """The command that runs the container."""
        environment = order.environment(self._fleet.index, run_name)
        name = f"bench-startup-{os.getpid()}-{self._namespace or 'node'}"
        devices = self._fleet.accelerator.devices
        if unpacked is not None:
            with container(unpacked, name, [*order.COMMAND], binds, devices, environment) as command:
                yield command
            return
        given = [word for path in devices for word in ("--device", path)]
        given += [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
        if self._containerd is not None:
            shown = [f"type=bind,src={source},dst={target},options=rbind:rw" for source, target in binds.items()]
            words = [*self._containerd.ctr, "run", "--rm", "--net-host", "--snapshotter", "overlayfs", *given]
            words += [word for one in shown for word in ("--mount", one)]
            yield [*words, self._fleet.reference, name, *order.COMMAND]
            return
        assert self._host is not None
        words = [*self._host.program, "run", "--oci-runtime", "runc", "--network", "host", "--rw"]
        words += ["--entrypoint", "", *given]
        words += [word for source, target in binds.items() for word in ("--bind", f"{source}:{target}")]
        if self._system.dependencies == "snapshot":
            words += ["--deps", str(self._folder / "job/requirements.txt"), "--deps-target", order.PACKAGES]
            words += ["--deps-allow-conflicts"]
        if self._system.checkpoint == "warmed":
            words += self._warmed()
        yield [*words, f"{self.store}#{TAG}", "--", *order.COMMAND]

    def _warmed(self) -> list[str]:
        """Flags of `imagefs run` that have it show the checkpoint, and fetch it from the beginning."""
        cluster, folder = self._fleet.cluster, self._fleet.folder
        source = f"{cluster.url}/bench/{folder}:{order.CHECKPOINT}/{folder}"
        # HDFS is behind other links than the image, so that nothing of them has to be left to that.
        return ["--checkpoint", source, "--checkpoint-share", "1", "--hadoop-conf", cluster.conf, "--hdfs-user", "root"]

    # -- dependencies --------------------------------------------------------------------------------------------------

    def _dependencies(self, events: Writer, stack: ExitStack) -> Path:
        """Mount the snapshot on the host, for a container of another program's. The directory."""
        assert self._host is not None
        here, node = self._host, self._fleet.deps_node()
        with events.begin("dependencies", "mount"):
            answered(node.imagefs(here, f"{self._fleet.link.url}/host-store"))
        stack.callback(remove_tree, node.target.parent)
        stack.callback(lambda: here.command("umount", str(node.target)))
        return node.target

    # -- checkpoint ----------------------------------------------------------------------------------------------------

    def _checkpoint(self, events: Writer, stack: ExitStack) -> Path | None:
        """The folder in which the container has the checkpoint's files, None where it reads them from HDFS itself."""
        if self._system.checkpoint == "get":
            with events.begin("checkpoint", "get"):
                return self._get()
        if self._system.checkpoint != "mount":
            return None
        with events.begin("checkpoint", "mount"):
            return stack.enter_context(self._mount()).folder

    def _get(self) -> Path:
        """All files at once by Hadoop's own client."""
        fleet = self._fleet
        target = self._folder / "got" / fleet.folder
        remove_tree(target)
        target.mkdir(parents=True)
        paths = [f"{fleet.cluster.url}{file.path}" for file in fleet.size.files]
        shell = ["java", "-cp", f"{fleet.cluster.conf}:{fleet.jars}/*", "org.apache.hadoop.fs.FsShell"]
        how = ["-get", "-t", str(len(paths))]
        run(*inside(self._namespace), *shell, *how, *paths, target, env=os.environ | {"HADOOP_USER_NAME": "root"})
        return target.parent

    def _mount(self) -> AbstractContextManager[Mount]:
        return mounts.stripefs(self._fleet.cluster, "auto", default_budget(), {}, namespace=self._namespace)
