"""Block locations of a file, and the DataNodes that the client knows.

A file of many TiB has a million blocks, so a segment of 512 block sizes is asked for at a time and kept. Boundaries
come from the answer, not from arithmetic: CONCAT leaves short blocks in the middle of a file.

A DataNode's name is its transfer address. Web addresses come from what the NameNode says (block locations, and its
NameNodeInfo bean), never from arithmetic on ports. `by_hostname` connects to the names under which DataNodes registered
instead of their addresses.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stripefs.errors import HostFailed, ServiceDown, StaleVersion, StoreError
from stripefs.store.base import Block, Host
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.wire import Replica, host_port

__all__ = ["SEGMENT_BLOCKS", "BlockLocations", "DataNodes"]

SEGMENT_BLOCKS = 512  # 256 KiB of JSON, answered within 10 ms
_FRESH = 5.0  # seconds during which a failing host does not make us ask again


class BlockLocations:
    """Blocks of a file of `length` bytes. `ask(offset, length)` answers those that overlap a range, in order.

    known: all its blocks, where they have just been asked for.
    """

    def __init__(
        self,
        length: int,
        block_size: int,
        ask: Callable[[int, int], Sequence[Block]],
        known: Sequence[Block] = (),
    ) -> None:
        self._length = length
        self._span = max(1, block_size) * SEGMENT_BLOCKS
        self._ask = ask
        self._segments: dict[int, tuple[float, Sequence[Block]]] = {}
        if known and self.in_one_segment:
            self._segments[0] = time.monotonic(), _clipped(known, length)
        self._outdated: set[int] = set()
        self._lock = threading.Lock()

    @property
    def in_one_segment(self) -> bool:
        """True if one question brings all blocks."""
        return self._length <= self._span

    def overlapping(self, offset: int, length: int) -> list[Block]:
        """The blocks that overlap [offset, offset + length), whole. StaleVersion when the file no longer has them."""
        stop = min(offset + length, self._length)
        if stop <= offset:
            return []
        blocks: list[Block] = []
        for index in range(offset // self._span, (stop - 1) // self._span + 1):
            for block in self._segment(index):
                # A block that crosses the border of two segments is in both answers.
                seen = blocks and block.offset < blocks[-1].offset + blocks[-1].length
                if not seen and block.offset < stop and block.offset + block.length > offset:
                    blocks.append(block)
        _check_cover(blocks, offset, stop)
        return blocks

    def refresh(self, offset: int) -> None:
        """A host of the block at `offset` failed: ask again next time, unless the answer is new."""
        index = offset // self._span
        with self._lock:
            kept = self._segments.get(index)
            if kept is not None and time.monotonic() - kept[0] > _FRESH:
                self._outdated.add(index)

    def _segment(self, index: int) -> Sequence[Block]:
        with self._lock:
            kept = self._segments.get(index)
            if kept is not None and index not in self._outdated:
                return kept[1]
            self._outdated.discard(index)
        start = index * self._span
        try:
            found = self._ask(start, min(self._span, self._length - start))
        except ServiceDown:
            if kept is None:
                raise
            return kept[1]  # where the blocks were is better than nothing
        blocks = _clipped(found, self._length)
        with self._lock:
            self._segments[index] = (time.monotonic(), blocks)
        return blocks


def _clipped(blocks: Iterable[Block], length: int) -> list[Block]:
    """The blocks up to `length`: a file that is still written to has more bytes by now than this version."""
    return [
        block if block.offset + block.length <= length else dataclasses.replace(block, length=length - block.offset)
        for block in blocks
        if block.length and block.offset < length
    ]


def _check_cover(blocks: Sequence[Block], offset: int, stop: int) -> None:
    at = offset
    for block in blocks:
        if block.offset > at:
            break
        at = block.offset + block.length
    if at < stop:
        raise StaleVersion(f"the file has no block at byte {at} any more")


_REFRESH = 30.0  # seconds; a NameNode calls a DataNode dead after ten minutes by default, so more often tells nothing


class DataNodes:
    """Safe to use from many threads."""

    def __init__(self, rest: NameNodeRest, *, by_hostname: bool) -> None:
        self._rest = rest
        self._by_hostname = by_hostname
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._hostnames: dict[str, str] = {}
        """By name of a DataNode: the host name under which it registered, where these are connected to."""
        self._asked = float("-inf")

    def learn(self, replicas: Iterable[Replica]) -> None:
        """Note where the DataNodes of block locations are reached."""
        with self._lock:
            for replica in replicas:
                if self._by_hostname:
                    self._hostnames[replica.name] = replica.hostname
                if not replica.web_port:
                    continue
                address = host_port(replica.hostname if self._by_hostname else replica.ip, replica.web_port)
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

    def transfer_address(self, name: str) -> str:
        """The address of the data transfer port of the DataNode `name`."""
        with self._lock:
            hostname = self._hostnames.get(name)
        return name if hostname is None else host_port(hostname, int(name.rpartition(":")[2]))

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
                    self._hosts[name] = Host(name, host_port(address, int(web_port)))
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
