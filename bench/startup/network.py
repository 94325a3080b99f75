"""Nodes of a fleet as network namespaces: each has a link of its own to the servers, and a way to HDFS.

The link is like that of `bench.link`, a veth with a token bucket at both ends, into the same namespace of servers, so
that the delaying proxy answers here too. The way to HDFS ends in the namespace of its router, behind which DataNodes
have their own caps. This machine's own addresses, routes and settings stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from bench.cluster import Cluster
from bench.link import NAMESPACE as SERVERS
from bench.link import SERVER, set_rate
from bench.programs import output, run

__all__ = ["namespaces"]

_PREFIX = "bench-node"
_MTU = "65535"


@contextmanager
def namespaces(count: int, cluster: Cluster, rate: float) -> Iterator[list[str]]:
    """So many, until the block ends. rate: bytes a second of each link to the servers.

    Those that a killed benchmark left are removed first.
    """
    _remove()
    try:
        yield [_make(number, cluster, rate) for number in range(1, count + 1)]
    finally:
        _remove()


def _make(number: int, cluster: Cluster, rate: float) -> str:
    name = f"{_PREFIX}{number}"
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    _join(name, "eth0", SERVERS, f"node{number}", 254, number)
    for namespace, link in ((name, "eth0"), (SERVERS, f"node{number}")):
        set_rate(namespace, link, rate)
    run("ip", "-n", name, "route", "add", f"{SERVER}/32", "via", _address(254, number, 1), "dev", "eth0")
    _join(name, "eth1", cluster.router, f"node{number}", 253, number)
    run("ip", "-n", name, "route", "add", cluster.network, "via", _address(253, number, 1), "dev", "eth1")
    return name


def _join(name: str, own: str, other: str, link: str, third: int, number: int) -> None:
    """A veth from `own` in the node to `link` in another namespace."""
    run("ip", "-n", other, "link", "add", link, "type", "veth", "peer", "name", own, "netns", name)
    for namespace, end, last in ((other, link, 1), (name, own, 2)):
        run("ip", "-n", namespace, "address", "add", f"{_address(third, number, last)}/30", "dev", end)
        run("ip", "-n", namespace, "link", "set", end, "mtu", _MTU, "up")


def _address(third: int, number: int, last: int) -> str:
    return f"198.19.{third}.{4 * number + last}"


def _remove() -> None:
    """Those that are there, with their links; what runs in them is their user's to end."""
    for entry in json.loads(output("ip", "-json", "netns", "list") or "[]"):
        name = entry.get("name", "")
        if name.startswith(_PREFIX):
            for link in ("eth0", "eth1"):
                run("ip", "-n", name, "link", "delete", link)
            run("ip", "netns", "delete", name)
