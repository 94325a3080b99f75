"""The DataNodes as the client knows them: transfer address (their name) -> web address, and which are live.

Web addresses come from what the NameNode says (block locations, and its NameNodeInfo bean), never from arithmetic on
ports. `by_hostname` connects to the names under which DataNodes registered instead of their addresses.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from stripefs.errors import HostFailed, StoreError
from stripefs.store.base import Host
from stripefs.store.hdfs.rest import NameNodeRest
from stripefs.store.hdfs.wire import Replica

__all__ = ["DataNodes"]

_REFRESH = 30.0  # seconds; a NameNode calls a DataNode dead after ten minutes by default, so more often tells nothing


class DataNodes:
    """Safe to use from many threads."""

    def __init__(self, rest: NameNodeRest, *, by_hostname: bool) -> None:
        self._rest = rest
        self._by_hostname = by_hostname
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._asked = float("-inf")

    def learn(self, replicas: Iterable[Replica]) -> None:
        """Note where the DataNodes of block locations are reached."""
        with self._lock:
            for replica in replicas:
                if not replica.web_port:
                    continue
                address = _join(replica.hostname if self._by_hostname else replica.ip, replica.web_port)
                known = self._hosts.get(replica.name)
                if known is None or known.reachable_as != address:  # it came back elsewhere
                    self._hosts[replica.name] = Host(replica.name, address)

    def address(self, name: str) -> str:
        """The web address of the DataNode `name`. Raises HostFailed where there is none."""
        with self._lock:
            host = self._hosts.get(name)
        if host is None:
            raise HostFailed(f"DataNode {name} has no http address", host=name, hint="--hdfs-transport native")
        return host.reachable_as

    def known(self) -> list[Host]:
        """All that were seen, their `live` as the NameNode last said; it is asked when the last answer is 30 s old."""
        with self._lock:
            due = time.monotonic() - self._asked > _REFRESH
            if due:
                self._asked = time.monotonic()
        if due:
            self._refresh()
        with self._lock:
            return sorted(self._hosts.values(), key=lambda host: host.name)

    def _refresh(self) -> None:
        try:
            bean = self._rest.jmx("NameNodeInfo")
        except StoreError:
            return  # away, or its administrator closed /jmx: block locations still tell addresses
        live, dead = _nodes(bean, "LiveNodes"), _nodes(bean, "DeadNodes")
        with self._lock:
            for key, node in live.items():
                name = str(node.get("xferaddr", ""))
                web_host, _, web_port = str(node.get("infoAddr", "")).rpartition(":")
                if name and web_port.isdigit() and int(web_port):
                    address = key.rpartition(":")[0] if self._by_hostname else web_host
                    self._hosts[name] = Host(name, _join(address, int(web_port)))
            for node in dead.values():
                name = str(node.get("xferaddr", ""))
                if name in self._hosts:
                    self._hosts[name] = Host(name, self._hosts[name].reachable_as, live=False)


def _nodes(bean: Mapping[str, Any], attribute: str) -> dict[str, dict[str, Any]]:
    """LiveNodes and DeadNodes are JSON documents within a JSON string."""
    try:
        nodes = json.loads(bean.get(attribute, "{}"))
    except (TypeError, ValueError):
        return {}
    return {key: node for key, node in nodes.items() if isinstance(node, dict)} if isinstance(nodes, dict) else {}


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
