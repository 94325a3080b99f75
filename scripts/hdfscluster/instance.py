"""An instance's life: start, stop, status, and what happens to single nodes.

`start` begins by removing whatever an earlier instance of the same name left, and ends by removing everything when it
does not succeed, a signal included. So there is one way to clean up, and it works from what the kernel shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hdfscluster import network, process
from hdfscluster.archive import write_archive
from hdfscluster.config import NAMENODE, Node, Spec, load_spec, write_site_files
from hdfscluster.errors import ClusterError
from hdfscluster.health import ask_namenode, has_reported
from hdfscluster.jars import ensure_jars
from hdfscluster.network import locked

__all__ = [
    "Say",
    "await_ready",
    "describe",
    "find_spec",
    "kill",
    "pause",
    "restart",
    "resume",
    "set_active",
    "set_rate",
    "start",
    "state_folder",
    "stop",
]

Say = Callable[[str], None]
"""Receives progress, a line at a time."""

_ROOT = Path("/var/tmp/bootseer-hdfs")  # on disk: the blocks of a benchmark do not fit a tmpfs
_STARTED = "started"  # this file in the state folder tells a running instance from what a crashed start left
_READY_WITHIN = 240.0  # seconds; 8 DataNodes take 16 to 25 s on two idle cores
_RECENT = 3  # seconds since a heartbeat, which come every second


def state_folder(name: str, chosen: str) -> Path:
    return Path(chosen).absolute() if chosen else _ROOT / name


def find_spec(name: str, chosen: str) -> Spec:
    """The spec of the instance `name`, which `start` has made. Raises ClusterError."""
    spec = load_spec(state_folder(name, chosen))
    if spec is None or spec.name != name:
        raise ClusterError(f"there is no instance {name!r}: ./scripts/hdfs-cluster start{_name_flag(name)}")
    return spec


def start(spec: Spec, say: Say) -> Spec:
    """Bring up a fresh, empty instance and return it with its subnet once every DataNode serves."""
    process.check_java()
    with locked(f"instance {spec.name}", patience=0):
        if process.find(spec.name) and (spec.folder / _STARTED).exists():
            raise ClusterError(f"{spec.name} is running: ./scripts/hdfs-cluster stop{_name_flag(spec.name)}")
        _remove(spec.name, spec.folder)
        process.check_memory(spec)
        say("checking Hadoop's jars")
        jars = ensure_jars()
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, spec.name, spec.folder)
            _make_folder(spec.folder)
            with locked("addresses", patience=30):
                spec = dataclasses.replace(spec, subnet=network.choose_subnet())
                spec.save()
                network.claim(spec)
            network.build(spec)
            write_site_files(spec)
            say(f"starting a NameNode and {spec.datanodes} DataNodes")
            process.format_namenode(spec, jars)
            first = [spec.namenode, *spec.data_nodes]
            for node in first:
                process.launch(spec, node, jars)
            await_ready(spec, say, first)
            if spec.standby:
                process.copy_to_standby(spec, jars)
                process.launch(spec, spec.name_nodes[1], jars)
                for node in spec.name_nodes:  # a transition asks the other NameNode, and fails where it is silent
                    _await_rpc(spec, node)
                process.administer_pair(spec, jars, "-transitionToActive", NAMENODE)
            complaint = write_archive(spec, jars, process.JVM_OPTIONS)
            if complaint:
                say(f"the next start will be no faster: no class archive: {complaint}")
            (spec.folder / _STARTED).touch()
            undo.pop_all()
    return spec


def stop(name: str, folder: Path) -> bool:
    """Remove the instance and all it stored. False when there was nothing to remove."""
    with locked(f"instance {name}", patience=60):
        return _remove(name, folder)


def describe(spec: Spec) -> dict[str, Any]:
    """Everything a client or a test needs to know, as it stands now (see `status --json`)."""
    processes = process.find(spec.name)
    health = ask_namenode(spec) if _running(processes, NAMENODE) else None
    live = health.live if health else {}
    datanodes = [
        _describe_node(spec, node, processes) | {"live": live.get(node.endpoint("transfer"), _RECENT + 1) <= _RECENT}
        for node in spec.data_nodes
    ]
    return {
        "name": spec.name,
        "url": spec.url,
        "http": spec.namenode.endpoint("http"),
        "conf": str(spec.client_conf),
        "state": str(spec.folder),
        "network": str(spec.network),
        "interface": spec.host_link,
        "ready": _is_ready(spec),
        "safemode": health.safemode if health else None,
        "block_size": spec.block_size,
        "replication": spec.replication,
        "rate": spec.rate,
        "permissions": spec.permissions,
        "webhdfs": spec.webhdfs,
        "namenode": _describe_node(spec, spec.namenode, processes),
        "standby": [_describe_node(spec, node, processes) for node in spec.name_nodes[1:]],
        "datanodes": datanodes,
    }


def kill(spec: Spec, nodes: Sequence[Node]) -> None:
    """SIGKILL, as machines that lose power. Their blocks stay on disk."""
    process.kill_all([_process(spec, node) for node in nodes])


def pause(spec: Spec, nodes: Sequence[Node]) -> None:
    """SIGSTOP, as machines that hang: connections stay, and nothing answers."""
    for found in [_process(spec, node) for node in nodes]:
        process.pause(found)


def resume(spec: Spec, nodes: Sequence[Node]) -> None:
    for found in [_process(spec, node) for node in nodes]:
        process.resume(found)


def restart(spec: Spec, nodes: Sequence[Node], say: Say) -> None:
    """Start killed nodes again, with what they had stored, and wait until they serve."""
    with locked(f"instance {spec.name}", patience=60):
        running = process.find(spec.name)
        for node in nodes:
            if node.name in running:
                raise ClusterError(f"{node.name} of {spec.name} is running: kill it first")
        jars = ensure_jars()
        for node in nodes:
            process.launch(spec, node, jars)
        await_ready(spec, say, nodes)


def set_safemode(spec: Spec, *, on: bool) -> None:
    """As an administrator does: what reads goes on, and what changes a name or begins a block is refused."""
    process.administer(spec, ensure_jars(), "-safemode", "enter" if on else "leave")


def set_active(spec: Spec, name: str) -> None:
    """Make this NameNode of two the active one; the other becomes the standby where it runs."""
    jars = ensure_jars()
    for node in spec.name_nodes:
        if node.name != name and _running(process.find(spec.name), node.name):
            process.administer_pair(spec, jars, "-transitionToStandby", node.name)
    process.administer_pair(spec, jars, "-transitionToActive", "--forceactive", name)


def await_ready(spec: Spec, say: Say, launched: Sequence[Node] = ()) -> None:
    """Wait until the NameNode takes writes and every DataNode that runs serves.

    Raises ClusterError when a node dies meanwhile, one of `launched` is not there, or all this takes too long.
    """
    begin = time.monotonic()
    expected = process.find(spec.name).keys() | {node.name for node in launched}
    told = begin
    while not _is_ready(spec):
        for name in sorted(expected - process.find(spec.name).keys()):
            raise ClusterError(f"{name} died: {process.last_words(spec, spec.node(name))}")
        now = time.monotonic()
        if now - begin > _READY_WITHIN:
            raise ClusterError(f"{spec.name} is not ready after {_READY_WITHIN:.0f} s: see {spec.folder}/*.log")
        if now - told > 5:
            health = ask_namenode(spec)
            say(f"{len(health.live) if health else 0} of {spec.datanodes} DataNodes are live")
            told = now
        time.sleep(0.25)


def _await_rpc(spec: Spec, node: Node) -> None:
    """Wait until this NameNode takes connections of clients. Raises ClusterError when it dies or takes too long."""
    end = time.monotonic() + _READY_WITHIN
    while True:
        try:
            socket.create_connection((node.address, node.ports["rpc"]), timeout=5).close()
        except OSError as error:
            if not _running(process.find(spec.name), node.name):
                raise ClusterError(f"{node.name} died: {process.last_words(spec, node)}") from None
            if time.monotonic() > end:
                raise ClusterError(f"{node.name} takes no connections: {error}") from None
            time.sleep(0.25)
        else:
            return


def set_rate(spec: Spec, rate: int) -> None:
    changed = dataclasses.replace(spec, rate=rate)
    network.set_rate(changed, rate)
    changed.save()


def _make_folder(folder: Path) -> None:
    """Root's own folder, readable by all: clients of other users need the configuration in it."""
    if folder.parent == _ROOT:
        _ROOT.mkdir(mode=0o755, exist_ok=True)
        if _ROOT.is_symlink() or _ROOT.stat().st_uid != os.geteuid():
            raise ClusterError(f"{_ROOT} belongs to somebody else: remove it or use --state FOLDER")
    folder.mkdir(mode=0o755, parents=True)
    (folder / "tmp").mkdir()


def _remove(name: str, folder: Path) -> bool:
    """Kill the processes of `name`, delete its namespaces and its state. False when there was nothing of it."""
    spec = load_spec(folder)
    ours = spec is not None and spec.name == name
    if folder.exists() and not ours and any(folder.iterdir()) and folder.parent != _ROOT:
        raise ClusterError(f"{folder} holds other files: use an empty or a new folder for --state")
    processes, namespaces = process.find(name), network.namespaces_of(name)
    process.kill_all(processes.values())
    network.remove(name)
    found = bool(processes or namespaces or folder.exists())
    if folder.exists():
        shutil.rmtree(folder)
    if folder.parent == _ROOT:
        with contextlib.suppress(OSError):  # missing, or still holding other instances
            _ROOT.rmdir()
    return found


def _is_ready(spec: Spec) -> bool:
    """True if the NameNode takes writes and knows the blocks of every DataNode that runs."""
    processes = process.find(spec.name)
    nodes = [node for node in spec.data_nodes if _running(processes, node.name)]
    health = ask_namenode(spec) if _running(processes, NAMENODE) else None
    if health is None or health.safemode or health.reports < len(nodes):
        return False
    recent = {address for address, age in health.live.items() if age <= _RECENT}
    return all(node.endpoint("transfer") in recent and has_reported(spec, node) for node in nodes)


def _running(processes: dict[str, process.Process], name: str) -> bool:
    return name in processes and processes[name].state == "running"


def _process(spec: Spec, node: Node) -> process.Process:
    found = process.find(spec.name).get(node.name)
    if found is None:
        again = f"restart {node.name}{_name_flag(spec.name)}"
        raise ClusterError(f"{node.name} of {spec.name} is not running: ./scripts/hdfs-cluster {again}")
    return found


def _describe_node(spec: Spec, node: Node, processes: dict[str, process.Process]) -> dict[str, Any]:
    found = processes.get(node.name)
    return {
        "node": node.name,
        "pid": found.pid if found else None,
        "state": found.state if found else "dead",
        "address": node.address,
        **{purpose: node.endpoint(purpose) for purpose in node.ports},
        "namespace": node.namespace,
        "log": str(spec.log(node)),
    }


def _name_flag(name: str) -> str:
    return "" if name == "default" else f" --name {name}"
