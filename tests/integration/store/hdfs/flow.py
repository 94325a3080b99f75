"""A DataNode on loopback that sends step by step, and a file that is read from it: what streams are tested with."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from stripefs.store.base import Handle
from stripefs.store.hdfs.store import HdfsStore
from tests.support.stores import RecordingWatch
from tests.tools.fake_hdfs import FakeCluster, FakeDataNode, Request, settings_for

__all__ = ["DATA", "MIB", "RANGE", "STEP", "Flow", "World", "in_line", "world"]

MIB = 1 << 20
DATA = random.Random(8).randbytes(24 * MIB)
RANGE = 256 << 10
STEP = 64 << 10


class Flow:
    """A DataNode that sends what is asked for, in steps, and then waits until the client has closed.

    `hold_at`: bytes after which it sends nothing more before `go` is set. `then` happens there instead of the rest.
    """

    def __init__(self, *, hold_at: int | None = None, then: Callable[[Request, bytes], None] | None = None) -> None:
        self.hold_at = hold_at
        self.then = then
        self.held = threading.Event()
        self.go = threading.Event()
        self.open_now = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request, wanted: bytes) -> None:
        with self._lock:
            self.open_now += 1
        try:
            if self._send(request, wanted):
                request.connection.settimeout(30)
                request.rfile.read()
        except OSError:
            pass
        finally:
            with self._lock:
                self.open_now -= 1

    def _send(self, request: Request, wanted: bytes) -> bool:
        request.answer(200, b"", "application/octet-stream", length=len(wanted))
        for at in range(0, len(wanted), STEP):
            if self.hold_at is not None and at >= self.hold_at:
                self.held.set()
                self.go.wait(30)
                if self.then is not None:
                    self.then(request, wanted[at:])
                    return False
            request.wfile.write(wanted[at : at + STEP])
        return True


class World:
    def __init__(self, cluster: FakeCluster, store: HdfsStore, pool: ThreadPoolExecutor) -> None:
        self.cluster = cluster
        self.store = store
        self.pool = pool
        self.handle: Handle = store.open(b"/file")

    @property
    def node(self) -> FakeDataNode:
        return self.cluster.datanodes[0]

    @property
    def asked(self) -> list[tuple[int, int]]:
        return [(int(query["offset"]), int(query["length"])) for query in self.node.served]

    @property
    def open(self) -> int:
        return len(self.store.reads.streams.all())

    def read(self, offset: int, *, ahead: int = len(DATA), watch: RecordingWatch | None = None) -> bool:
        """True if the right bytes came."""
        ahead = min(ahead, len(DATA) - offset - RANGE)
        data = self.handle.read_on(offset, RANGE, ahead, host=self.node.name, watch=watch)
        return data == DATA[offset : offset + RANGE]

    def begin(self, offset: int, *, watch: RecordingWatch | None = None) -> Future[bool]:
        return self.pool.submit(self.read, offset, watch=watch)


@contextmanager
def world(*manners: Callable[[Request, bytes], None], timeout: float = 30.0) -> Iterator[World]:
    with FakeCluster.running(DATA, *manners) as cluster, ThreadPoolExecutor(8) as pool:
        store = HdfsStore(settings_for(cluster, host_timeout=timeout))
        try:
            yield World(cluster, store, pool)
        finally:
            for manner in manners:
                if isinstance(manner, Flow):
                    manner.go.set()
            store.close()


def in_line(one: World, offset: int) -> bool:
    """True if a read that ends at `offset` is the last in line."""
    return any(found.tail == offset for found in one.store.reads.streams.all())
