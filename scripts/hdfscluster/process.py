"""The JVMs of an instance. Each carries `-Dbootseer.hdfs=INSTANCE/NODE` in its command line, by which it is found.

So no file of process ids can go stale, name a stranger's process, or be lost with a crashed start.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hdfscluster.archive import archive_options
from hdfscluster.config import Node, Spec
from hdfscluster.errors import ClusterError

__all__ = [
    "JVM_OPTIONS",
    "Process",
    "administer",
    "administer_pair",
    "check_java",
    "check_memory",
    "copy_to_standby",
    "find",
    "format_namenode",
    "kill_all",
    "last_words",
    "launch",
    "pause",
    "resume",
]

_MARK = "-Dbootseer.hdfs="
_SERVER = "org.apache.hadoop.hdfs.server"
JVM_OPTIONS = [
    "-XX:+UseSerialGC",  # nine collectors with threads of their own would fight over a small machine
    "-XX:-UsePerfData",  # else each JVM that is killed leaves a file in /tmp
    "-Xss512k",
    "-Djava.net.preferIPv4Stack=true",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
]
_MORE_OPTIONS = "HDFS_CLUSTER_JAVA_OPTIONS"
"""The environment variable with further options of each JVM, for those that care more for CPU than for throughput."""
_RESIDENT = 200 << 20  # bytes; a DataNode's JVM measures 145 to 180 MB after some GiB of traffic
_GONE = frozenset(["", "Z", "X"])
_STOPPED = frozenset(["T", "t"])


@dataclass(frozen=True, slots=True)
class Process:
    """`state` is running or paused."""

    node: str
    pid: int
    state: str


def check_java() -> None:
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError("java is missing: apt-get install default-jre-headless") from error
    version = re.search(r'version "(\d+)', done.stderr)
    if version is None or int(version[1]) < 11:
        raise ClusterError("java 11 or later is needed: apt-get install default-jre-headless")


def check_memory(spec: Spec) -> None:
    """Refuse what would drive the machine out of memory: each JVM needs about 200 MB."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    needed = _RESIDENT * len(spec.nodes)
    if available is not None and int(available[1]) << 10 < needed:
        raise ClusterError(
            f"{spec.datanodes} DataNodes need about {needed >> 20} MiB of memory and {int(available[1]) >> 10} MiB "
            "are free: use fewer --datanodes or stop other instances"
        )


def find(instance: str) -> dict[str, Process]:
    """The living processes of `instance`, by node."""
    mark = f"{_MARK}{instance}/".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        for argument in arguments:
            state = _state(int(folder.name))
            if argument.startswith(mark) and state not in _GONE:
                node = argument[len(mark) :].decode()
                found[node] = Process(node, int(folder.name), "paused" if state in _STOPPED else "running")
    return found


def launch(spec: Spec, node: Node, jars: Path) -> None:
    """Start the JVM of `node` in its namespace, detached from this command."""
    role = "namenode.NameNode" if node in spec.name_nodes else "datanode.DataNode"
    # Not `ip netns exec`: it gives the JVM a mount namespace of its own, which would keep alive every mount there is.
    command = ["nsenter", f"--net=/run/netns/{node.namespace}", *_java(spec, node, jars)]
    command += [*archive_options(spec, node, jars), f"{_SERVER}.{role}"]
    with spec.log(node).open("ab") as log:
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=spec.folder, start_new_session=True
        )


def format_namenode(spec: Spec, jars: Path) -> None:
    """Write the NameNode's first, empty image."""
    _prepare(spec, spec.namenode, jars, "-format")


def copy_to_standby(spec: Spec, jars: Path) -> None:
    """Write the standby's first image, as the NameNode, which runs, has it."""
    _prepare(spec, spec.name_nodes[1], jars, "-bootstrapStandby")


def _prepare(spec: Spec, node: Node, jars: Path, option: str) -> None:
    command = ["nsenter", f"--net=/run/netns/{node.namespace}", *_java(spec, node, jars)]
    command += [*archive_options(spec, node, jars), f"{_SERVER}.namenode.NameNode", option, "-nonInteractive"]
    with spec.log(node).open("ab") as log:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=spec.folder,
            start_new_session=True,
            check=False,
        )
    if done.returncode:
        raise ClusterError(f"the image of {node.name} could not be made: {last_words(spec, node)}")


def administer(spec: Spec, jars: Path, *words: str) -> None:
    """`hdfs dfsadmin WORDS`."""
    _run_tool(spec, jars, "DFSAdmin", "-fs", spec.url, *words)


def administer_pair(spec: Spec, jars: Path, *words: str) -> None:
    """`hdfs haadmin WORDS`."""
    _run_tool(spec, jars, "DFSHAAdmin", *words)


def _run_tool(spec: Spec, jars: Path, tool: str, *words: str) -> None:
    node = spec.namenode
    command = [word for word in _java(spec, node, jars) if not word.startswith(_MARK)]  # it is none of the nodes
    done = subprocess.run(
        [*command, f"org.apache.hadoop.hdfs.tools.{tool}", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).strip().splitlines() if not line.startswith("Usage:")]
        raise ClusterError(f"{tool} {' '.join(words)}: {said[-1] if said else f'exit code {done.returncode}'}")


def last_words(spec: Spec, node: Node) -> str:
    """The cause of death in a dead node's log: its last line that is an error, else its last line."""
    lines = [line for line in spec.log(node).read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(ERROR|FATAL)\b|Exception|^Error", line)]
    return (errors or lines or ["its log is empty"])[-1].strip()


def kill_all(processes: Iterable[Process]) -> None:
    """SIGKILL, then wait until they are gone."""
    processes = list(processes)
    for process in processes:
        _signal(process, signal.SIGKILL)
    for process in processes:
        _await_state(process, _GONE, reached=True)


def pause(process: Process) -> None:
    _signal(process, signal.SIGSTOP)
    _await_state(process, _STOPPED | _GONE, reached=True)


def resume(process: Process) -> None:
    _signal(process, signal.SIGCONT)
    _await_state(process, _STOPPED, reached=False)


def _java(spec: Spec, node: Node, jars: Path) -> list[str]:
    heap = 384 if node in spec.name_nodes else 256
    # The jars first: an archive of their classes counts only where the class path begins with them.
    classes = f"{jars}/*:{spec.conf(node)}:{spec.folder}/web"
    return [
        "java",
        *JVM_OPTIONS,
        *os.environ.get(_MORE_OPTIONS, "").split(),
        f"-Xmx{heap}m",
        "-Xms64m",
        f"-Djava.io.tmpdir={spec.folder}/tmp",
        f"-Djdk.net.hosts.file={spec.folder}/hosts",
        f"{_MARK}{spec.name}/{node.name}",
        "-cp",
        classes,
    ]


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return  # gone already; whoever waits for a state will see that


def _await_state(process: Process, states: frozenset[str], *, reached: bool) -> None:
    deadline = time.monotonic() + 30
    while (_state(process.pid) in states) is not reached:
        if time.monotonic() > deadline:
            raise ClusterError(f"{process.node} (process {process.pid}) does not react to its signal")
        time.sleep(0.01)


def _state(pid: int) -> str:
    """The letter that proc(5) gives a process's state, "" when there is no such process.

    A process whose first thread has ended is shown as a zombie while others still hold its files and ports: until they
    are gone it is "D" here.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, threads = fields[0], int(fields[17])
    return "D" if state == "Z" and threads > 1 else state
