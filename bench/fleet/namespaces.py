"""Nodes of a fleet on one machine: network namespaces with a link and an imagefs daemon of their own.

    store --(link: store rate)--> relay and mirror --(bridge: mirror rate)--> node 0 … N-1, each (node rate)

The store is that of `bench.harness.link`. The mirror is nginx as docs/mirrors.md sets it up, the relay hands
connections of nodes on to the store itself. Both answer on the bridge, whose queue has the mirror's rate. All of it
goes when the block ends, and what a killed benchmark left behind when the next begins.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import ROOT, BenchError, netns
from bench.harness.environment import remove_mounts, remove_tree
from bench.harness.host import Host
from bench.harness.link import Link
from bench.harness.programs import inside, service

__all__ = ["NodeHost", "Rates", "nodes"]

_BRIDGE = "bench-fleet"
_PREFIX = "bench-fleet-"
_ADDRESS = "198.18.255.1"
_RELAY, _MIRROR = 8080, 8081
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
        (folder / "temporary").mkdir()
        (folder / "nginx.conf").write_text(_configuration(folder, store))
        relay: list[str | Path] = [sys.executable, "-m", "bench.harness.delay", "0", f"{_ADDRESS}:{_RELAY}={store}"]
        mirror: list[str | Path] = ["nginx", "-p", folder, "-e", folder / "log", "-c", folder / "nginx.conf"]
        for name, command, port in (("relay", relay, _RELAY), ("nginx", mirror, _MIRROR)):
            stack.enter_context(service(name, command, folder / f"{name}.out", partial(_answers, port)))
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
    netns.ip("", "link", "add", _BRIDGE, "type", "bridge")
    netns.bring_up("", _BRIDGE, f"{_ADDRESS}/24")
    for number in range(count):
        name = f"{_PREFIX}{number}"
        netns.add(name)
        netns.veth("", name, name, "eth0")
        netns.bring_up("", name, "", "master", _BRIDGE)
        netns.bring_up(name, "eth0", f"{_ADDRESS.rpartition('.')[0]}.{number + 10}/24")
        netns.set_rate("", name, rates.node)
    netns.set_rate("", _BRIDGE, rates.mirror)


def _remove() -> None:
    netns.remove(_PREFIX)
    if Path(f"/sys/class/net/{_BRIDGE}").exists():
        netns.ip("", "link", "delete", _BRIDGE)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((_ADDRESS, port), 1):
        return True
    return False
