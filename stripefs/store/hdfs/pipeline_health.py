"""Health of write pipelines: the DataNode that a placed file waits for, and files that need not wait for it again.

A DataNode that writes a file passes each block on to the DataNodes of its further replicas, which the NameNode chooses
and no request can exclude (WebHDFS takes `excludedatanodes` for the first one alone). Where one of those stops
answering, the first, which is well, says nothing either: for 70 s, Hadoop's own time-out with two replicas; the
NameNode goes on choosing the silent one for ten minutes, where it is not set to avoid stale DataNodes.

So when a DataNode is silent, the NameNode is asked who else has part in the block, and each of them is asked for a sign
of life. Those who give none are noted. While any is, who begins a block looks who got it, and begins anew where one of
them is among them: that takes some ms instead of a time-out.

A request that is given up early may not be ended at once: its DataNode would wait in vain for the next one, on one of
the few threads that serve its web port, and hang for others. It is laid aside until Hadoop's time-out is over.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from stripefs.errors import HostFailed, StoreError
from stripefs.retry import HostHealth
from stripefs.store.hdfs.block_locations import DataNodes
from stripefs.store.hdfs.connection import answers
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.wire import last_block_of

__all__ = ["PipelineHealth"]

_SIGN = 1.0
"""Seconds that a sign of life may take: an HTTP answer that costs the DataNode nothing."""

_PROBES = 3
"""Connections by which it is asked for: each lands on another thread of the DataNode's, one of which may hang."""

_TRUSTED = 5.0
"""Seconds after which a DataNode that was silent is asked again."""

_CLOSED_AFTER = 80.0
"""Seconds: 60 s and 5 s for each replica is how long a DataNode waits for the next (dfs.client.socket-timeout)."""


class PipelineHealth:
    """Safe to use from many threads. `timeout`: seconds for which a DataNode may be silent; names are transfer
    addresses."""

    def __init__(self, rest: NameNodeRest, datanodes: DataNodes, health: HostHealth, timeout: float) -> None:
        self._rest = rest
        self._datanodes = datanodes
        self._health = health
        self._sign = min(_SIGN, timeout)
        self._lock = threading.Lock()
        self._closing: list[tuple[float, socket.socket]] = []

    @property
    def any_silent(self) -> bool:
        """True if any DataNode is known to be silent."""
        return self._health.any_silent(time.monotonic())

    def of(self, path: str) -> tuple[int, tuple[str, ...]]:
        """Number of blocks of a file that is being written, and the DataNodes that have part in the last one.

        (0, ()) before it is made, and where that is not known now.
        """
        try:
            count, replicas = last_block_of(self._rest.ask("GET_BLOCK_LOCATIONS", path))
        except StoreError:
            return 0, ()
        self._datanodes.learn(replicas)
        return count, tuple(replica.name for replica in replicas)

    def silent_hosts(self, path: str, first: str) -> list[str]:
        """The silent ones among `first`, where `path` is being written, and the other DataNodes of its last block."""
        return self.without_sign(dict.fromkeys([first, *self.of(path)[1]]))

    def silent(self, names: Iterable[str]) -> list[str]:
        """The DataNodes of `names` that are known to be silent, and are so still."""
        now = time.monotonic()
        found_at = {name: self._health.silent_since(name) for name in names}
        known = {name: now - since > _TRUSTED for name, since in found_at.items() if since is not None}
        found = set(self.without_sign([name for name, old in known.items() if old]))
        return [name for name, old in known.items() if not old or name in found]

    def without_sign(self, names: Iterable[str]) -> list[str]:
        """The DataNodes of `names` that give no sign of life now."""
        names = list(names)
        if not names:
            return []
        with ThreadPoolExecutor(len(names), thread_name_prefix="sign-of-life") as threads:
            alive = list(threads.map(self._alive, names))
        for name, lives in zip(names, alive, strict=True):
            if lives:
                self._health.gave_sign(name)
            else:
                self._health.gave_no_sign(name, time.monotonic())
        return [name for name, lives in zip(names, alive, strict=True) if not lives]

    def _alive(self, name: str) -> bool:
        try:
            address = self._datanodes.address(name)
        except HostFailed:
            return True  # it has no web port that could be asked
        return answers(address, self._sign, _PROBES)

    def close_later(self, sock: socket.socket) -> None:
        """Close it when its DataNode waits for nobody any more."""
        now = time.monotonic()
        with self._lock:
            self._closing.append((now + _CLOSED_AFTER, sock))
            over = [each for until, each in self._closing if until <= now]
            self._closing = [(until, each) for until, each in self._closing if until > now]
        for each in over:
            each.close()

    def close(self) -> None:
        with self._lock:
            aside, self._closing = self._closing, []
        for _, sock in aside:
            sock.close()
