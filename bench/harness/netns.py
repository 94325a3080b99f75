"""Network namespaces of benchmarks: made, joined by virtual links with a rate each, and removed with what runs there.

A namespace is given by its name, "" being that of this process. Addresses are of the networks set aside for benchmarks
(RFC 2544). This machine's own addresses, routes and settings stay as they are.
"""

from __future__ import annotations

import json

from bench.harness.processes import kill
from bench.harness.programs import output, run

__all__ = ["add", "bring_up", "ip", "remove", "set_rate", "veth"]

_MTU = "65535"  # so that headers take nothing worth mentioning of a rate


def ip(namespace: str, *words: str) -> None:
    """Run the command `ip` on a namespace."""
    run("ip", *(["-n", namespace] if namespace else []), *words)


def add(name: str) -> None:
    """Make a namespace, with its loopback up."""
    ip("", "netns", "add", name)
    ip(name, "link", "set", "lo", "up")


def veth(namespace: str, device: str, other: str, peer: str) -> None:
    """Join two namespaces: `device` in the one is `peer` in the other. Neither end is up."""
    ip(namespace, "link", "add", device, "type", "veth", "peer", "name", peer, "netns", other)


def bring_up(namespace: str, device: str, address: str = "", *words: str) -> None:
    """Bring up an end of a link with its address (ADDRESS/LENGTH), if it is to have one. words: more to set on it."""
    if address:
        ip(namespace, "address", "add", address, "dev", device)
    ip(namespace, "link", "set", device, "mtu", _MTU, *words, "up")


def set_rate(namespace: str, device: str, rate: float) -> None:
    """Bytes a second that a device sends, 0 for no limit."""
    # The burst holds four full packets and is 5 ms at 50 MB/s.
    bucket = ["tbf", "rate", f"{rate * 8:.0f}bit", "burst", "256kb", "latency", "200ms"]
    where = ["-netns", namespace] if namespace else []
    run("tc", *where, "qdisc", "replace", "dev", device, "root", *(bucket if rate else ["noqueue"]))


def remove(prefix: str) -> None:
    """Remove namespaces whose names begin so: the processes inside, their links, both ends, and the namespaces."""
    for entry in json.loads(output("ip", "-json", "netns", "list") or "[]"):
        name = str(entry.get("name", ""))
        if name.startswith(prefix):
            kill(*map(int, output("ip", "netns", "pids", name).split()))
            for link in json.loads(output("ip", "-n", name, "-json", "link", "show", "type", "veth") or "[]"):
                ip(name, "link", "delete", link["ifname"])
            ip("", "netns", "delete", name)
