"""The start-up events of reads: a span for each large file while it is read, and the waits in it.

The span of a file begins with its open and ends with the last byte that a reader got, when it has been closed, or when
nobody has read it for `IDLE` seconds: programs map a checkpoint and keep it open for as long as they run. A later read
begins another span.

Files below `LEAST` are not told. Of others at most `SPANS` are told one by one, and one more each second; the rest are
added up and written together, as spans named `other files`, every `TOGETHER` seconds at most.

The reader tells what it does through `stripefs.read.reader.ReadObserver`, on trio's thread, and only where events are
wanted. A read that does not wait costs a look at the clock here, and two additions.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from stripefs.cache.cached_store import CACHE
from stripefs.settings import redact
from stripefs.stalls import LEAST as STALL
from stripefs.stalls import Stalls
from stripefs.startup_events import Writer, identity

__all__ = ["IDLE", "LEAST", "SPANS", "TOGETHER", "FileEvents", "ReadEvents", "events_of_reads"]

LEAST = 1 << 20
"""Bytes of a file: those of a checkpoint that matter are larger, and its directories have thousands of smaller ones."""

SPANS = 1000
"""Files with spans of their own: more than a node's ranks open of the largest checkpoints."""

IDLE = 10.0
TOGETHER = 10.0
"""Seconds."""

_STAGE = "checkpoint"


def events_of_reads(folder: str, url: str) -> ReadEvents:
    """The events of this process, of reads from the store at `url`, in this folder."""
    scheme, _, rest = redact(url).partition("://")
    server = rest.partition("/")[0].partition("?")[0]
    cause = "datanode" if scheme.rpartition("+")[2] in ("hdfs", "webhdfs") else "store"
    return ReadEvents(Writer(folder, identity(), "stripefs"), cause, server)


class ReadEvents:
    """The events of one process that reads: a `ReadObserver`.

    cause: of a wait for a host that the store has named. server: the host of a store that names none. now: the clock,
    in seconds, whose values the reader tells.
    """

    def __init__(self, writer: Writer, cause: str, server: str = "", now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._writer = writer
        self._cause, self._server = cause, server
        self._stalls = Stalls()
        self._free = float(SPANS)
        self._counted = now()
        self._files: set[FileEvents] = set()
        self._others = _Sum()

    def opened(self, name: str, length: int) -> FileEvents | None:
        """A file was opened; None where it has no span."""
        if length < LEAST:
            return None
        file = FileEvents(self, name)
        self._files.add(file)
        return file

    def closed(self, file: FileEvents) -> None:
        self._files.discard(file)
        file.end()

    def tick(self) -> None:
        """End the spans of files that nobody reads, and tell of those that were added up."""
        now = self.now()
        for file in self._files:
            if file.idle(now):
                file.end()
        if self._others.files and now - self._others.begun >= TOGETHER:
            self._tell_others()

    def close(self) -> None:
        """End all spans, and wait a moment until all is written."""
        for file in self._files:
            file.end()
        self._files.clear()
        if self._others.files:
            self._tell_others()
        self._writer.close()

    def may_tell(self) -> bool:
        """True where one more file gets a span of its own."""
        now = self.now()
        self._free = min(float(SPANS), self._free + now - self._counted)
        self._counted = now
        if self._free < 1.0:
            return False
        self._free -= 1.0
        return True

    def together(self, one: _Sum) -> None:
        """A file without a span of its own has been read."""
        self._others.add(one)

    def about(self, host: str) -> dict[str, str]:
        """The cause of a wait for this host, and the name that people know it by."""
        if host == CACHE:
            return {"cause": "disk"}
        host, cause = (host, self._cause) if host else (self._server, "store")
        return {"cause": cause, "host": host} if host else {"cause": cause}

    def stalled(self, begun: float, host: str, parent: str) -> None:
        """A long wait for this host, which began then, has ended."""
        facts, now = self.about(host), self.now()
        if self._stalls.ended(begun, now, facts["cause"], host):
            span = os.urandom(8).hex()
            self.emit("begin", "stall", begun, span=span, parent=parent, kind="wait", facts=facts)
            self.emit("end", "stall", now, span=span, kind="wait", facts=facts)

    def facts(self, one: _Sum) -> dict[str, Any]:
        facts: dict[str, Any] = {"bytes": one.bytes, "cache_bytes": one.cached, "store_bytes": one.bytes - one.cached}
        if one.waits:
            host = max(one.waits, key=lambda each: one.waits[each])
            facts |= {"wait_ns": int(sum(one.waits.values()) * 1e9), **self.about(host)}
        return facts

    def emit(self, event: str, name: str, at: float, **more: Any) -> None:
        """An event that happened at this time of the clock."""
        wall = time.time_ns() - int((self.now() - at) * 1e9)
        self._writer.emit(event, _STAGE, name, wall_ns=wall, mono_ns=int(at * 1e9), **more)

    def _tell_others(self) -> None:
        others, self._others = self._others, _Sum()
        span = os.urandom(8).hex()
        self.emit("begin", "other files", others.begun, span=span)
        self.emit("end", "other files", others.last, span=span, facts={**self.facts(others), "files": others.files})


class _Sum:
    """The reads of one file, or of several: begun and last are times, waits are seconds by host."""

    def __init__(self, begun: float = 0.0) -> None:
        self.begun = self.last = begun
        self.bytes = self.cached = self.files = 0
        self.waits: defaultdict[str, float] = defaultdict(float)

    def add(self, other: _Sum) -> None:
        """One more file."""
        self.begun = min(self.begun, other.begun) if self.files else other.begun
        self.last = max(self.last, other.last)
        self.files += 1
        self.bytes += other.bytes
        self.cached += other.cached
        for host, seconds in other.waits.items():
            self.waits[host] += seconds


class FileEvents:
    """Observes the reads of one open file: a `FileObserver`."""

    def __init__(self, owner: ReadEvents, name: str) -> None:
        self._owner, self._name = owner, name
        self._waiting = 0
        self._read: _Sum | None = None
        self._span = ""
        self._begin()

    def took(self, host: str, size: int) -> None:
        """A reader was handed so many bytes, which had come from this host."""
        read = self._read or self._begin()
        read.last = self._owner.now()
        if not read.bytes and self._span:
            self._owner.emit("instant", "first byte", read.last, parent=self._span)
        read.bytes += size
        if host == CACHE:
            read.cached += size

    def waits(self) -> None:
        """A reader begins to wait."""
        self._waiting += 1
        if self._read is None:
            self._begin()

    def waited(self, begun: float, host: str) -> None:
        """A reader has waited since `begun`; of all hosts it waited for this one the longest."""
        self._waiting -= 1
        read = self._read or self._begin()
        read.last = self._owner.now()
        read.waits[host] += read.last - begun
        if read.last - begun >= STALL:
            self._owner.stalled(begun, host, self._span)

    def closed(self) -> None:
        """The last who read it has closed it."""
        self._owner.closed(self)

    def idle(self, now: float) -> bool:
        return self._read is not None and not self._waiting and now - self._read.last >= IDLE

    def end(self) -> None:
        read, self._read = self._read, None
        if read is None:
            return
        if self._span:
            self._owner.emit("end", self._name, read.last, span=self._span, facts=self._owner.facts(read))
        else:
            self._owner.together(read)

    def _begin(self) -> _Sum:
        now = self._owner.now()
        self._read = _Sum(now)
        self._span = os.urandom(8).hex() if self._owner.may_tell() else ""
        if self._span:
            self._owner.emit("begin", self._name, now, span=self._span)
        return self._read
