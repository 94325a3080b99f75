"""The instance's network: one namespace per node, the NameNode's being the router between DataNodes and host.

The host gets one interface and one route. Everything else, forwarding included, is set inside the instance's own
namespaces, where neither the host's firewall nor its sysctls reach, so deleting the namespaces undoes it all. Each
DataNode's link carries a token bucket at both ends: what it sends and what it receives are capped apart.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from typing import Any

from hdfscluster.config import SUBNETS, Node, Spec
from hdfscluster.errors import ClusterError

__all__ = ["build", "choose_subnet", "claim", "count_bytes", "inside", "locked", "namespaces_of", "remove", "set_rate"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_INNER = "eth0"  # a DataNode's own end of its link, and the NameNode's end of the link to the host


@contextmanager
def locked(what: str, patience: float) -> Iterator[None]:
    """Hold a lock of this host (more exactly: of its network namespace) named `what`, waiting `patience` seconds.

    A name in the abstract socket space needs no file and is gone with the process that holds it.
    """
    deadline = time.monotonic() + patience
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
        while True:
            try:
                holder.bind(f"\0bootseer-hdfs-cluster/{what}")
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"another hdfs-cluster command is busy with {what}: try again later") from error
                time.sleep(0.05)
        yield


def choose_subnet() -> int:
    """The lowest subnet that no address and no route of this host touches. Hold the lock `addresses` meanwhile."""
    taken = list(_networks_in_use())
    for number, network in enumerate(SUBNETS):
        if not any(network.overlaps(other) for other in taken):
            return number
    raise ClusterError(f"all {len(SUBNETS)} test networks in 198.18.0.0/15 are in use: stop other instances first")


def claim(spec: Spec) -> None:
    """Make the router and the host's link, after which `choose_subnet` of others passes this one by."""
    router = spec.namenode
    _add_namespace(router.namespace)
    _write_sysctl(router.namespace, "net/ipv4/ip_forward", "1")
    _ip("link", "add", spec.host_link, "type", "veth", "peer", "name", _INNER, "netns", router.namespace)
    _ip("address", "add", f"{spec.host_address}/30", "dev", spec.host_link)
    _ip("link", "set", spec.host_link, "up")
    _ip("-n", router.namespace, "address", "add", f"{router.address}/30", "dev", _INNER)
    _ip("-n", router.namespace, "link", "set", _INNER, "up")
    _ip("route", "add", str(spec.network), "via", router.address, "dev", spec.host_link)


def build(spec: Spec) -> None:
    """Add the other nodes' namespaces and links, and the DataNodes' token buckets, to what `claim` made."""
    for node in spec.nodes:
        if node != spec.namenode:
            _add_linked(spec, node)
    set_rate(spec, spec.rate)


def remove(name: str) -> None:
    """Delete every link and namespace of the instance `name`; addresses and routes go with them.

    Links go first and one by one: a namespace lives on unseen while a dying connection in it still waits for answers.
    """
    for namespace in namespaces_of(name):
        for link in json.loads(_ip("-n", namespace, "-json", "link", "show", "type", "veth") or "[]"):
            if link.get("ifname"):
                _ip("-n", namespace, "link", "delete", link["ifname"])
        _ip("netns", "delete", namespace)


def namespaces_of(name: str) -> list[str]:
    pattern = re.compile(rf"hdfs-{re.escape(name)}-(nn2?|dn[0-9]+)")
    listed: list[dict[str, Any]] = json.loads(_ip("-json", "netns", "list") or "[]")
    return sorted(entry["name"] for entry in listed if pattern.fullmatch(entry["name"]))


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Sockets that this thread opens meanwhile belong to `namespace`, and stay there. Raises OSError."""
    with open("/proc/thread-self/ns/net") as outside, open(f"/run/netns/{namespace}") as within:
        _enter(within.fileno())
        try:
            yield
        finally:
            _enter(outside.fileno())


def set_rate(spec: Spec, rate: int) -> None:
    """Cap each DataNode at `rate` bytes a second in each direction; 0 lifts the cap."""
    for node in spec.data_nodes:
        for namespace, link in ((node.namespace, _INNER), (spec.namenode.namespace, node.name)):
            root = ["-netns", namespace, "qdisc", "replace", "dev", link, "root"]
            # 256 kB lets through a full GSO packet and is 6 ms at 40 MB/s, so a burst does not hide the cap.
            bucket = ["tbf", "rate", f"{rate * 8}bit", "burst", "256kb", "latency", "50ms"]
            _run("tc", *root, *(bucket if rate else ["noqueue"]))


def count_bytes(spec: Spec) -> dict[str, dict[str, int]]:
    """Bytes on the wire since the start, headers included, by DataNode: `sent` by it and `received` by it."""
    counts = {}
    for node in spec.data_nodes:
        (link,) = json.loads(_ip("-n", node.namespace, "-json", "-statistics", "link", "show", _INNER))
        counts[node.name] = {"sent": link["stats64"]["tx"]["bytes"], "received": link["stats64"]["rx"]["bytes"]}
    return counts


def _add_linked(spec: Spec, node: Node) -> None:
    router = spec.namenode.namespace
    _add_namespace(node.namespace)
    _ip("-n", router, "link", "add", node.name, "type", "veth", "peer", "name", _INNER, "netns", node.namespace)
    _ip("-n", router, "address", "add", f"{node.gateway}/30", "dev", node.name)
    _ip("-n", router, "link", "set", node.name, "up")
    _ip("-n", node.namespace, "address", "add", f"{node.address}/30", "dev", _INNER)
    _ip("-n", node.namespace, "link", "set", _INNER, "up")
    _ip("-n", node.namespace, "route", "add", "default", "via", node.gateway)


def _add_namespace(namespace: str) -> None:
    _ip("netns", "add", namespace)
    _ip("-n", namespace, "link", "set", "lo", "up")


def _write_sysctl(namespace: str, key: str, value: str) -> None:
    _run("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", f"echo {value} > /proc/sys/{key}")


def _networks_in_use() -> Iterator[IPv4Network]:
    for interface in json.loads(_ip("-json", "-4", "address", "show") or "[]"):
        for address in interface.get("addr_info", []):
            yield IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
    for route in json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]"):
        if route["dst"] != "default":
            yield IPv4Network(route["dst"], strict=False)


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET):  # os.setns comes with Python 3.12
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is missing: apt-get install iproute2 util-linux") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ClusterError(f"`{' '.join(command)}` failed: {reason}")
    return done.stdout
