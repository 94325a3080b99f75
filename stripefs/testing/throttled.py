"""`throttled+`: spreads the files of a store without hosts over synthetic ones, as HDFS spreads blocks over DataNodes.

Placement depends on the seed, the path and the block's number, so every process sees the same. `random` gives a block
to `replication` hosts drawn anew, as HDFS does; `even` deals blocks out in turn; `one` keeps a file on one host.

A read is paced by the hosts first and its bytes are fetched from the inner store then, so they are of the moment at
which the last byte would have arrived.

A file that is written through `create` lies where it was asked to (`host`), in blocks of the size asked for, and keeps
its place when it is moved or joined. Its bytes take as long as its hosts need, one replica beside the other. Joins are
refused as HDFS refuses them. This needs an inner store with file ids that can be written.

The block layout of such a file is a small document in the folder `/.stripefs-hosts` of the inner store, which is not
shown, under the file's id, so that it goes with a file that is moved, and every process sees the same. A document that
does not fit its file's length belongs to a file that is gone, and is ignored. Files without a document have their
blocks where the seed says.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from stripefs.errors import ConfigError, HostFailed, NotFound, StoreError, Unsupported
from stripefs.format.blocks import Block
from stripefs.store.base import Buffer, Handle, Host, Identity, Kind, Sink, Status, Store, Watch
from stripefs.store.common import check_range
from stripefs.store.wrapper import Parser, WrappedHandle, WrappedSink, WrappedStore, one_of, seeded, whole
from stripefs.testing.simulated_hosts import SimulatedHosts
from stripefs.units import format_size, parse_duration, parse_rate, parse_size, shown

__all__ = ["FOLDER", "BlockLayout", "BlockLayouts", "ThrottledStore", "cut"]

FOLDER = b".stripefs-hosts"
_LAYOUTS = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """block_size in bytes is the one the file was made with; blocks are (length, hosts), in order."""

    block_size: int
    replication: int
    blocks: tuple[tuple[int, _LAYOUTS], ...]

    def overlapping(self, offset: int, length: int) -> list[Block]:
        ends = itertools.accumulate(size for size, _ in self.blocks)
        blocks = [Block(end - size, size, hosts) for end, (size, hosts) in zip(ends, self.blocks, strict=True)]
        return [block for block in blocks if block.offset < offset + length and offset < block.offset + block.length]

    def to_bytes(self) -> bytes:
        return json.dumps([self.block_size, self.replication, self.blocks]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BlockLayout:
        """Raises ValueError, TypeError for anything but what `to_bytes` made."""
        block_size, replication, blocks = json.loads(data)
        return cls(int(block_size), int(replication), tuple((int(size), tuple(hosts)) for size, hosts in blocks))


class BlockLayouts:
    """The documents of `store`. Safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, BlockLayout] = {}
        self._lock = threading.Lock()

    def names(self) -> frozenset[bytes]:
        """Of all documents, as `of` wants them: one look for a whole listing."""
        try:
            return frozenset(
                itertools.chain.from_iterable(
                    (status.name for status in batch) for batch in self._store.scandir(b"/" + FOLDER)
                )
            )
        except NotFound:
            return frozenset()

    def of(self, status: Status, names: frozenset[bytes] | None = None) -> BlockLayout | None:
        """The layout of the file `status`; `names` spares the look for files without one."""
        if not status.file_id or (names is not None and _name(status) not in names):
            return None
        with self._lock:
            layout = self._known.get(status.file_id)
        if layout is None or not _fits(layout, status):
            try:
                layout = BlockLayout.from_bytes(bytes(self._store.get(_path(status))))
            except (StoreError, ValueError, TypeError):
                return None
            with self._lock:
                self._known[status.file_id] = layout
        return layout if _fits(layout, status) else None

    def put(self, status: Status, layout: BlockLayout) -> None:
        self._store.put(_path(status), [layout.to_bytes()], replace=True)
        with self._lock:
            self._known[status.file_id] = layout

    def forget(self, status: Status | None) -> None:
        """The file is gone."""
        if status is None or not status.file_id:
            return
        with self._lock:
            self._known.pop(status.file_id, None)
        with contextlib.suppress(StoreError):
            self._store.remove(_path(status))


def cut(length: int, block_size: int, hosts: Sequence[_LAYOUTS]) -> tuple[tuple[int, _LAYOUTS], ...]:
    """A file of `length` bytes in blocks; hosts[i] hold block i."""
    return tuple(
        (min(block_size, length - start), places)
        for start, places in zip(range(0, length, block_size), hosts, strict=True)
    )


def _fits(layout: BlockLayout, status: Status) -> bool:
    return sum(size for size, _ in layout.blocks) == status.length


def _name(status: Status) -> bytes:
    return status.file_id.replace(":", "-").replace("/", "-").encode()


def _path(status: Status) -> bytes:
    return b"/%b/%b" % (FOLDER, _name(status))


_PLACEMENTS = ("random", "even", "one")
_STEP = 256 << 10
"""Bytes that one replica takes before the next one does: idle hosts have saved more, so none waits for another."""


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
        placed = inner.capabilities.writes and inner.capabilities.put and inner.capabilities.file_ids
        self.capabilities = replace(inner.capabilities, locations=True, choose_host=True, cancel=True, place=placed)
        self._places = BlockLayouts(inner) if placed else None
        self.hosts_control = SimulatedHosts(hosts, rate, burst=burst, timeout=host_timeout, control=control)
        self._block_size = block_size
        self._replication = replication
        self._placement = placement
        self._seed = seed
        self._facts = f"{hosts} hosts of {format_size(rate)}/s, {placement} placement, replication {replication}"

    def stat(self, path: bytes) -> Status:
        return self.spread(self.inner.stat(path))

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        names = self._places.names() if self._places else None
        for batch in self.inner.scandir(path, after):
            yield [self.spread(status, names) for status in batch if path != b"/" or status.name != FOLDER]

    def handle(self, path: bytes, inner: Handle) -> Handle:
        return _ThrottledHandle(self, path, inner)

    def create(
        self,
        path: bytes,
        *,
        host: str = "",
        block_size: int = 0,
        replication: int = 0,
        length: int | None = None,
        private: bool = False,
    ) -> Sink:
        if host and self._places is None:
            raise Unsupported(f"{self.inner.url} has no file ids to note by what was placed where")
        if host and host not in self.hosts_control.names:
            raise HostFailed(f"there is no host {host}", host=host)
        # The inner store keeps marks.
        sink = super().create(path, block_size=block_size, length=length, private=private)
        wanted = BlockLayout(
            block_size or self._block_size, min(replication or self._replication, len(self.hosts_control.names)), ()
        )
        return _ThrottledSink(self, path, host, wanted, sink)

    def remove(self, path: bytes) -> None:
        before = self._look(path)
        super().remove(path)
        self._forget(before)

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        before = self._look(target) if replace else None
        super().rename(source, target, replace=replace)
        self._forget(before)

    def compare_and_rename(self, source: bytes, target: bytes, seen: Identity) -> None:
        before = self._look(target)
        super().compare_and_rename(source, target, seen)
        self._forget(before)

    def compare_and_remove(self, path: bytes, seen: Identity) -> None:
        before = self._look(path)
        super().compare_and_remove(path, seen)
        self._forget(before)

    def concat(self, target: bytes, sources: Sequence[bytes]) -> None:
        if self._places is None:
            super().concat(target, sources)
            return
        files = [(path, self.stat(path)) for path in (target, *sources)]
        for path, status in files[1:]:
            if not status.length or status.block_size > files[0][1].block_size:
                why = "is empty" if not status.length else "has larger blocks than the target"
                raise Unsupported(f"{shown(path)} {why}, which cannot be joined")
        blocks = [
            (block.length, block.hosts)
            for path, status in files
            for block in self.blocks(path, status, self.layout(status), 0, status.length)
        ]
        super().concat(target, sources)
        for _, status in files:
            self._places.forget(status)
        joined = BlockLayout(files[0][1].block_size, files[0][1].replication, tuple(blocks))
        self._places.put(self.inner.stat(target), joined)

    def hosts(self) -> Sequence[Host]:
        return self.hosts_control.listed()

    def describe(self) -> dict[str, str]:
        return {**self.inner.describe(), "throttled": self._facts}

    def spread(self, status: Status, names: frozenset[bytes] | None = None) -> Status:
        """`status` as a file in blocks; other kinds as they are. `names` are those of `BlockLayouts`."""
        if status.kind is not Kind.FILE:
            return status
        return self.spread_as(status, self.layout(status, names))

    def spread_as(self, status: Status, layout: BlockLayout | None) -> Status:
        if layout is None:
            return replace(status, block_size=self._block_size, replication=self._replication)
        return replace(status, block_size=layout.block_size, replication=layout.replication)

    def layout(self, status: Status, names: frozenset[bytes] | None = None) -> BlockLayout | None:
        """The block layout with which the file `status` was put, at the cost of a look into the store; None: where the
        seed says."""
        return self._places.of(status, names) if self._places else None

    def blocks(self, path: bytes, status: Status, layout: BlockLayout | None, offset: int, length: int) -> list[Block]:
        """The blocks of the file `status`, as `spread_as` made it, that overlap the range, whole."""
        end, size = status.length, status.block_size
        if length <= 0 or offset >= end:
            return []
        if layout is not None:
            return layout.overlapping(offset, length)
        indexes = range(offset // size, -(-min(end, offset + length) // size))
        return [Block(index * size, min(size, end - index * size), self.replicas(path, index)) for index in indexes]

    def wrote(self, status: Status, wanted: BlockLayout, hosts: Sequence[tuple[str, ...]]) -> Status:
        """Note where the blocks of a new file are."""
        if self._places is not None:
            layout = replace(wanted, blocks=cut(status.length, wanted.block_size, hosts))
            self._places.put(status, layout)
        return self.spread(status)

    def beside(self, host: str, path: bytes, index: int, count: int) -> tuple[str, ...]:
        """`host` and `count` - 1 others, for block `index` of the file at `path`."""
        others = [name for name in self.hosts_control.names if name != host]
        return (host, *seeded(self._seed, path, index).sample(others, count - 1))

    def replicas(self, path: bytes, index: int) -> tuple[str, ...]:
        """The hosts that hold block `index` of the file at `path`."""
        names = self.hosts_control.names
        if self._placement == "random":
            return tuple(seeded(self._seed, path, index).sample(names, self._replication))
        first = seeded(self._seed, path).randrange(len(names)) + (index if self._placement == "even" else 0)
        return tuple(names[(first + turn) % len(names)] for turn in range(self._replication))

    def _look(self, path: bytes) -> Status | None:
        if self._places is None:
            return None
        try:
            return self.inner.stat(path)
        except StoreError:
            return None  # the call that follows says why

    def _forget(self, before: Status | None) -> None:
        """Of a file whose last name is gone."""
        if self._places is not None and before is not None and before.kind is Kind.FILE and before.links == 1:
            self._places.forget(before)


class _ThrottledSink(WrappedSink):
    """`wanted` is the layout but for its blocks; without `host` they go where the store's placement says."""

    def __init__(self, store: ThrottledStore, path: bytes, host: str, wanted: BlockLayout, inner: Sink) -> None:
        super().__init__(inner)
        self._store = store
        self._path = path
        self._host = host
        self._wanted = wanted
        self._length = 0
        self._hosts: list[tuple[str, ...]] = []

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            size = min(len(view), _STEP, self._wanted.block_size - self._length % self._wanted.block_size)
            self._send(size)
            self.inner.write(view[:size])
            self._length += size
            view = view[size:]

    def close(self) -> Status:
        return self._store.wrote(self.inner.close(), self._wanted, self._hosts)

    def _send(self, size: int) -> None:
        """Let the block's hosts take `size` bytes. One that fails is left out, unless it was asked for or is alone."""
        if self._length % self._wanted.block_size == 0:
            index, count = len(self._hosts), self._wanted.replication
            first = self._host or self._store.replicas(self._path, index)[0]
            self._hosts.append(self._store.beside(first, self._path, index, count))
        for host in self._hosts[-1]:
            try:
                self._store.hosts_control.send(host, size)
            except HostFailed:
                left = tuple(name for name in self._hosts[-1] if name != host)
                if host == self._host or not left:
                    raise
                self._hosts[-1] = left


class _ThrottledHandle(WrappedHandle):
    def __init__(self, store: ThrottledStore, path: bytes, inner: Handle) -> None:
        super().__init__(inner)
        self._layout = store.layout(inner.status)  # once: every read asks for its blocks
        self.status = store.spread_as(inner.status, self._layout)
        self._store = store
        self._path = path

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return self._store.blocks(self._path, self.status, self._layout, offset, length)

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
