"""Consecutive reads from one DataNode by WebHDFS share one long answer instead of a request each.

A request costs a DataNode two round trips to the NameNode and some ms of CPU. Reading a striped file through 64 MiB of
memory takes ranges of 2 MiB: as requests of their own 4.1 to 8.5 s of DataNode CPU per GB, JVMs warm or fresh, as
streams 2.1 to 2.6 (8 DataNodes and the client on 2 busy cores); reads at 0.83 to 0.51 of the hosts' rate come at 0.97
to 0.92 of it.

    joining     a read that begins where the last one in line of its stream ends goes in line behind it, and takes its
                bytes when they are next. Reads of several threads may come in another order than they were meant in:
                one that is a little ahead of the line waits for the one between, for a moment
    opening     a read whose reader said that it goes on opens a stream, as far as it said and the host has the bytes
    alone       every other read asks for exactly its range

A stream ends with its last byte, when a read of it fails or is cancelled, when nobody has taken anything for IDLE, when
its place is needed, or with its file. Then those in line fail as it did, or ask for their own ranges where nothing
speaks against the host. The kernel holds twice WINDOW at most that nobody has taken, and that is lost with a stream;
the DataNode waits meanwhile, with a connection and a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import closing

from stripefs.errors import Abandoned, HostFailed, StoreError
from stripefs.store.base import Watch
from stripefs.store.common import Cancellation, PassedOn, cancellable
from stripefs.store.hdfs.connection import Answer

__all__ = ["IDLE", "MOST", "WINDOW", "Ask", "Key", "ReadStream", "ReadStreams"]

MOST = 32
"""Streams that are open at once: as many as a reader has threads."""

IDLE = 2.0
"""Seconds without a read after which a stream is closed: longer than a consumer pauses between two windows, short
enough that a DataNode's threads are not held by readers who have gone."""

WINDOW = 512 << 10
"""Bytes on their way or in the kernel that a stream asks for; the kernel takes up to twice as many. 50 MB/s at a round
trip of 10 ms, which is a hundred times what it is within a cluster."""

NEAR = 2
"""A read that begins up to so many times its length ahead of the line is one of several that were begun together."""

ORDER = 0.1
"""Seconds such a read waits for those between: threads that begin at once come within a few ms of each other."""

ALIVE = 0.25
"""Seconds between two signs of life that reads in line give while the stream moves."""

Ask = Callable[[int, int, int], Answer]
"""(offset, length, window) -> the answer to a request for these bytes, not asked for yet."""

Key = tuple[Hashable, str]
"""The stream's owner and its host."""


class ReadStream:
    """Bytes [begin, end) of a file from one host. `position`: the next to come; `tail`: where the line ends."""

    def __init__(self, key: Key, answer: Answer, begin: int, end: int, lock: threading.RLock) -> None:
        self.key = key
        self.answer = answer
        self.begin = self.position = self.tail = begin
        self.end = end
        self.stop = end
        """The bytes are not taken from here on."""
        self.taking = False
        self.moved = time.monotonic()
        """Time at which bytes came last, or a read began or ended."""
        self.lost: StoreError | None = None
        self.gone = False
        self.changed = threading.Condition(lock)

    @property
    def idle(self) -> bool:
        return not self.taking and self.position == self.tail

    def wake(self) -> None:
        """Wake those in line: one of them has been cancelled."""
        with self.changed:
            self.changed.notify_all()

    def fits(self, offset: int, length: int) -> bool:
        """True if a read may go in line, now or when those between have."""
        return not self.gone and self.stop == self.end and self.tail <= offset and offset + length <= self.end


class ReadStreams:
    """The open streams of a store. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a watch may be cancelled, and call us, while we register with it
        self._streams: dict[Key, list[ReadStream]] = {}
        self._sweeping = False
        self._swept = threading.Condition(self._lock)
        self._closed = False

    def read(self, key: Key, ask: Ask, offset: int, length: int, end: int, watch: Watch | None) -> memoryview:
        """`length` > 0 bytes from `offset` of the file at the host that `key` stands for.

        end: up to where its reader will go on at this host, offset + length or less when that is not known. Raises what
        `Answer.take` raises.
        """
        stream = self._join(key, ask, offset, length, end, watch)
        if stream is not None and self._turn(stream, offset, watch):
            return self._take(stream, offset, length, watch)
        with closing(ask(offset, length, 0)) as answer:
            return answer.take(length, watch)

    def all(self) -> list[ReadStream]:
        """The streams that are open now."""
        with self._lock:
            return [stream for streams in self._streams.values() for stream in streams]

    def drop(self, owner: Hashable) -> None:
        """Close the streams whose key is (owner, …); reads of them that are under way fail."""
        with self._lock:
            for stream in [one for one in self.all() if one.key[0] == owner]:
                self._end(stream, None)

    def close(self) -> None:
        """Close all streams, and open none any more."""
        with self._lock:
            self._closed = True
            for stream in self.all():
                self._end(stream, None)
            self._swept.notify()

    # -- going in line -----------------------------------------------------------------------------------------------

    def _join(self, key: Key, ask: Ask, offset: int, length: int, end: int, watch: Watch | None) -> ReadStream | None:
        """The stream in whose line the read is now, opened for it where that is worth it; None for a read alone."""
        near = NEAR * length
        with self._lock:
            mine = self._streams.get(key, ())
            ahead = [one for one in mine if one.fits(offset, length) and offset - one.tail <= near]
            if ahead:
                return self._queued(min(ahead, key=lambda one: offset - one.tail), offset, length, watch)
            if any(0 <= one.begin - (offset + length) <= near for one in mine):
                return None  # the first of several, overtaken by the others
            if end <= offset + length or self._closed or not self._room():
                return None
            stream = ReadStream(key, ask(offset, end - offset, WINDOW), offset, end, self._lock)
            stream.tail = offset + length
            self._streams.setdefault(key, []).append(stream)
            self._start_sweeper()
            return stream

    def _queued(self, stream: ReadStream, offset: int, length: int, watch: Watch | None) -> ReadStream | None:
        deadline = time.monotonic() + ORDER
        with cancellable(watch, stream.wake):
            while stream.tail < offset and not stream.gone and (left := deadline - time.monotonic()) > 0:
                stream.changed.wait(left)
                _demand(watch)
        if stream.tail == offset and stream.fits(offset, length):
            stream.tail = offset + length
            stream.changed.notify_all()
            return stream
        if stream.idle:  # the bytes between came another way, so nobody will take them
            self._end(stream, None)
        return None

    def _turn(self, stream: ReadStream, offset: int, watch: Watch | None) -> bool:
        """Wait until the bytes at `offset` are next, and begin to take; False where they will not come.

        Raises HostFailed where the host failed those before, Abandoned.
        """
        with self._lock:
            try:
                with cancellable(watch, stream.wake):
                    return self._waited(stream, offset, watch)
            except Abandoned:
                stream.stop = min(stream.stop, offset)
                if not stream.taking and stream.position == stream.stop:
                    self._end(stream, None)
                stream.changed.notify_all()
                raise

    def _waited(self, stream: ReadStream, offset: int, watch: Watch | None) -> bool:
        seen = 0.0
        while stream.taking or stream.position != offset:
            if isinstance(stream.lost, HostFailed):
                lost = stream.lost
                raise HostFailed(lost.message, host=lost.host, stalled=lost.stalled, hint=lost.hint)
            if stream.gone or offset >= stream.stop:
                return False
            stream.changed.wait(ALIVE)
            _demand(watch)
            if watch is not None and stream.moved > seen:
                watch.progress(0)
                seen = stream.moved
        stream.taking = not stream.gone
        return stream.taking

    def _take(self, stream: ReadStream, offset: int, length: int, watch: Watch | None) -> memoryview:
        failure: StoreError | None = None
        done = False
        try:
            data = stream.answer.take(length, _ProgressWatch(stream, watch))
            done = True
        except StoreError as error:
            failure = error
            raise
        finally:
            with self._lock:
                stream.taking = False
                stream.moved = time.monotonic()
                stream.position += length * done
                if not done or stream.gone or stream.position >= stream.stop:
                    self._end(stream, failure)
                stream.changed.notify_all()
        return data

    # -- ending; all with the lock held ------------------------------------------------------------------------------

    def _end(self, stream: ReadStream, why: StoreError | None) -> None:
        if not stream.gone:
            stream.gone, stream.lost = True, why
            mine = self._streams[stream.key]
            mine.remove(stream)
            if not mine:
                del self._streams[stream.key]
            stream.changed.notify_all()
        if stream.taking:
            stream.answer.shut()
        else:
            stream.answer.close()

    def _room(self) -> bool:
        """True if one more may be opened; the one that has been idle longest goes where there are too many."""
        if len(self.all()) < MOST:
            return True
        idle = min((one for one in self.all() if one.idle), key=lambda one: one.moved, default=None)
        if idle is not None:
            self._end(idle, None)
        return idle is not None

    def _start_sweeper(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            threading.Thread(target=self._sweep, name="streams", daemon=True).start()

    def _sweep(self) -> None:
        """Close what is idle; ends with the last stream."""
        with self._lock:
            while self._streams:
                self._swept.wait(IDLE / 4)
                before = time.monotonic() - IDLE
                for stream in self.all():
                    if stream.idle and stream.moved < before:
                        self._end(stream, None)
            self._sweeping = False


class _ProgressWatch(PassedOn):
    """The watch of who takes: those in line see when bytes came."""

    def __init__(self, stream: ReadStream, watch: Watch | None) -> None:
        super().__init__(Cancellation() if watch is None else watch)
        self._stream = stream

    def progress(self, received: int) -> None:
        self._stream.moved = time.monotonic()
        super().progress(received)


def _demand(watch: Watch | None) -> None:
    if watch is not None and watch.cancelled:
        raise Abandoned("read was cancelled before its turn")
