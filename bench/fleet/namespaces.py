"""Nodes of a fleet on one machine: network namespaces with a link and an imagefs daemon of their own.

    store --(link: store rate)--> relay and mirror --(bridge: mirror rate)--> node 0 … N-1, each (node rate)

The store is that of `bench.link`. The mirror is nginx as docs/mirrors.md sets it up, the relay hands connections of
nodes on to the store itself. Both answer on the bridge, whose queue has the mirror's rate. All of it goes when the
block ends, and what a killed benchmark left behind when the next begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import ROOT, BenchError
from bench.host import Host
from bench.link import Link
from bench.programs import inside, output, run
from bench.tools import remove_mounts, remove_tree

__all__ = ["NodeHost", "Rates", "nodes"]

_BRIDGE = "bench-fleet"
_PREFIX = "bench-fleet-"
_ADDRESS = "198.18.255.1"
_RELAY, _MIRROR = 8080, 8081
_STARTS_WITHIN = 15.0
_ENDS_WITHIN = 10.0
_PAGE = ROOT / "docs/mirrors.md"
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second of the store, of the mirror and of each node's link; 0 for no limit."""

    store: float = 0.0
    mirror: float = 0.0
    node: float = 0.0


class NodeHost(Host):
    """A host in a network namespace. `store` and `mirror` are the URLs under which it sees both."""

    store = f"http://{_ADDRESS}:{_RELAY}"
    mirror = f"http://{_ADDRESS}:{_MIRROR}"

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, f"{_PREFIX}{number}")
        self.folder = folder
        self._inside = inside(f"{_PREFIX}{number}")

    def begin(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """A program on this node, under way, with pipes."""
        return subprocess.Popen(
            [*self._inside, *command],
            env=os.environ | self.environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a ^C is ours to handle
        )


@contextmanager
def nodes(work: Path, link: Link, count: int, rates: Rates) -> Iterator[list[NodeHost]]:
    """So many nodes, whose caches, and the mirror's, are empty. Their daemons are not started. Raises BenchError."""
    folder = work / "fleet"
    link.set_rate(rates.store)
    with ExitStack() as stack:
        _remove()
        stack.callback(_remove)
        remove_mounts(folder)
        remove_tree(folder)
        stack.callback(remove_tree, folder)
        stack.callback(remove_mounts, folder)
        folder.mkdir(parents=True)
        _make(count, rates)
        store = link.url.removeprefix("http://")
        relay = [sys.executable, "-m", "bench.delay", "0", f"{_ADDRESS}:{_RELAY}={store}"]
        stack.enter_context(_server(relay, folder, _RELAY))
        (folder / "temporary").mkdir()
        (folder / "nginx.conf").write_text(_configuration(folder, store))
        mirror = ["nginx", "-p", str(folder), "-e", str(folder / "log"), "-c", str(folder / "nginx.conf")]
        stack.enter_context(_server(mirror, folder, _MIRROR))
        made = []
        for number in range(count):
            place = folder / f"node{number}"
            (place / "run").mkdir(0o700, parents=True)
            (place / "cache").mkdir()
            (place / "mnt").mkdir()
            made.append(NodeHost(place, number))
            stack.callback(made[-1].stop)
        yield made


def _configuration(folder: Path, store: str) -> str:
    """The configuration that the docs show, with folders, addresses and a user of ours."""
    text = _PAGE.read_text().partition("```nginx\n")[2].partition("```")[0]
    here = {
        "user www-data;": "user root; daemon off;",
        "worker_processes auto;": "worker_processes 2;",
        "pid /run/nginx.pid;": f"pid {folder}/pid;",
        "error_log /var/log/nginx/error.log warn;": f"error_log {folder}/log error;",
        "worker_connections 8192;": "worker_connections 512;",
        "/var/cache/nginx/imagefs": f"{folder}/mirror",
        "server store.example:80;": f"server {store};",
        "proxy_set_header Host store.example;": f"proxy_set_header Host {store};",
        "listen 8080;": f"listen {_ADDRESS}:{_MIRROR};",
        "sendfile on;": "\n".join(f"{one}_temp_path {folder}/temporary;" for one in _TEMPORARY),
    }
    for there, replaced in here.items():
        if text.count(there) != 1:
            raise BenchError(f"{_PAGE.name} has no single {there!r} any more")
        text = text.replace(there, replaced)
    return text


def _make(count: int, rates: Rates) -> None:
    run("ip", "link", "add", _BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{_ADDRESS}/24", "dev", _BRIDGE)
    run("ip", "link", "set", _BRIDGE, "mtu", "65535", "up")
    for number in range(count):
        name = f"{_PREFIX}{number}"
        inside = ("ip", "-n", name)
        run("ip", "netns", "add", name)
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", name, "mtu", "65535", "master", _BRIDGE, "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "set", "eth0", "mtu", "65535", "up")
        run(*inside, "address", "add", f"{_ADDRESS.rpartition('.')[0]}.{number + 10}/24", "dev", "eth0")
        _limit(name, rates.node)
    _limit(_BRIDGE, rates.mirror)


def _limit(device: str, rate: float) -> None:
    if rate:
        bucket = ["tbf", "rate", f"{rate * 8:.0f}bit", "burst", "256kb", "latency", "200ms"]
        run("tc", "qdisc", "replace", "dev", device, "root", *bucket)


def _remove() -> None:
    for entry in json.loads(output("ip", "-json", "netns", "list") or "[]"):
        name = str(entry.get("name"))
        if name.startswith(_PREFIX):
            for pid in output("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            if Path(f"/sys/class/net/{name}").exists():
                run("ip", "link", "delete", name)
            run("ip", "netns", "delete", name)
    if Path(f"/sys/class/net/{_BRIDGE}").exists():
        run("ip", "link", "delete", _BRIDGE)


@contextmanager
def _server(command: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.out").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            with contextlib.suppress(OSError), socket.create_connection((_ADDRESS, port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{Path(command[0]).name} does not answer on port {port}: see {folder}")
            time.sleep(0.05)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
