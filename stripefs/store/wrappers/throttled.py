"""`throttled+`: spread the files of a store without hosts over synthetic ones, as HDFS spreads blocks over DataNodes.

Placement depends on the seed, the path and the block's number, so every process sees the same. `random` gives a block
to `replication` hosts drawn anew, as HDFS does; `even` deals blocks out in turn; `one` keeps a file on one host.

A read is paced by the hosts first and its bytes are fetched from the inner store then, so they are of the moment at
which the last byte would have arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from stripefs.errors import ConfigError, HostFailed
from stripefs.store.base import Block, Buffer, Handle, Host, Identity, Kind, Status, Store, Watch
from stripefs.store.ranges import check_range
from stripefs.store.wrappers.base import Parser, WrappedHandle, WrappedStore, one_of, seeded, whole
from stripefs.store.wrappers.hosts import Hosts
from stripefs.units import format_size, parse_duration, parse_rate, parse_size

__all__ = ["ThrottledStore"]

_PLACEMENTS = ("random", "even", "one")


class ThrottledStore(WrappedStore):
    """rate and burst in bytes (a second) for each host, block_size in bytes, host_timeout in seconds.

    `control` is the path of a file that sets hosts' states from outside (see `wrappers.hosts`); `hosts_control` does
    the same from inside the process.
    """

    NAME = "throttled"
    PARAMETERS: ClassVar[Mapping[str, Parser]] = {
        "hosts": whole,
        "rate": parse_rate,
        "burst": parse_size,
        "block-size": parse_size,
        "replication": whole,
        "placement": one_of(*_PLACEMENTS),
        "seed": int,
        "host-timeout": parse_duration,
        "control": str,
    }

    def __init__(
        self,
        inner: Store,
        *,
        hosts: int = 8,
        rate: float = 40e6,
        burst: int = 1 << 20,
        block_size: int = 8 << 20,
        replication: int = 1,
        placement: str = "random",
        seed: int = 0,
        host_timeout: float = 5.0,
        control: str = "",
    ) -> None:
        super().__init__(inner)
        if min(rate, block_size, replication) <= 0 or replication > hosts:
            raise ConfigError(
                "throttled needs rate and block-size above 0 and replication from 1 to the number of hosts"
            )
        self.capabilities = replace(inner.capabilities, locations=True, choose_host=True, cancel=True)
        self.hosts_control = Hosts(hosts, rate, burst=burst, timeout=host_timeout, control=control)
        self._block_size = block_size
        self._replication = replication
        self._placement = placement
        self._seed = seed
        self._facts = f"{hosts} hosts of {format_size(rate)}/s, {placement} placement, replication {replication}"

    def stat(self, path: bytes) -> Status:
        return self.spread(self.inner.stat(path))

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        for batch in self.inner.scandir(path, after):
            yield [self.spread(status) for status in batch]

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        return _ThrottledHandle(self, path, self.inner.open(path, expect))

    def hosts(self) -> Sequence[Host]:
        return self.hosts_control.listed()

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "throttled": self._facts}

    def spread(self, status: Status) -> Status:
        """`status` as a file in blocks; other kinds as they are."""
        if status.kind is not Kind.FILE:
            return status
        return replace(status, block_size=self._block_size, replication=self._replication)

    def replicas(self, path: bytes, index: int) -> tuple[str, ...]:
        """The hosts that hold block `index` of the file at `path`."""
        names = self.hosts_control.names
        if self._placement == "random":
            return tuple(seeded(self._seed, path, index).sample(names, self._replication))
        first = seeded(self._seed, path).randrange(len(names)) + (index if self._placement == "even" else 0)
        return tuple(names[(first + turn) % len(names)] for turn in range(self._replication))


class _ThrottledHandle(WrappedHandle):
    def __init__(self, store: ThrottledStore, path: bytes, inner: Handle) -> None:
        super().__init__(inner)
        self.status = store.spread(inner.status)
        self._store = store
        self._path = path

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        end, size = self.status.length, self.status.block_size
        if length <= 0 or offset >= end:
            return ()
        indexes = range(offset // size, -(-min(end, offset + length) // size))
        return [
            Block(index * size, min(size, end - index * size), self._store.replicas(self._path, index))
            for index in indexes
        ]

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        for block in self.locate(offset, length):
            start, stop = max(offset, block.offset), min(offset + length, block.offset + block.length)
            self._send(block, stop - start, start - offset, host, watch)
        return self.inner.read(offset, length)

    def _send(self, block: Block, length: int, before: int, host: str, watch: Watch | None) -> None:
        hosts = self._store.hosts_control
        if host:
            if host not in block.hosts:
                raise HostFailed(f"{host} has no replica of the block at {block.offset}", host=host)
            hosts.send(host, length, watch, before)
            return
        # A client library that chooses by itself goes on to the next replica by itself.
        for last, replica in enumerate(block.hosts, 1 - len(block.hosts)):
            try:
                hosts.send(replica, length, watch, before)
                return
            except HostFailed as error:
                if last == 0:
                    raise HostFailed(error.message, stalled=error.stalled) from error
