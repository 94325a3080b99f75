"""A new file by WebHDFS at one chosen DataNode, its body sent as it is written.

A DataNode that is asked to CREATE writes through Hadoop's own client on the spot, so every block's first replica is its
own; the further ones are placed as ever. The body goes with its length where that is known, else in chunks, which cost
the same (Hadoop 3.4.2: 0.4 CPU seconds per GB on a busy machine with either). The DataNode says 100 Continue to
everything, then nothing until it is done or has failed; a failure can come at any time, and ends the connection.

A connection that ends early makes the DataNode close the file as if it were whole. So a file that is given up has to
be removed, and a file counts only once the DataNode has said 201 and the NameNode tells the length that was written.

A DataNode that is silent may only be waiting for the next one of its pipeline: `pipeline` tells which of them it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Sequence

from stripefs.errors import Exists, HostFailed, NotFound, StoreError
from stripefs.store.base import Buffer, Status
from stripefs.store.common import ConfirmedSink
from stripefs.store.hdfs.connection import connect, read_head, reason, refusal, silent_after
from stripefs.store.hdfs.pipeline_health import PipelineHealth

__all__ = ["PATIENCE", "DataNodeSink", "send_pieces", "unsent_bytes"]

PATIENCE = 3
"""Time-outs of reading for which a DataNode may be silent while it writes: 15 s by default. It waits by itself, without
a word, for the NameNode to hear of a block's replicas: 400 ms and the double five times over, 12.4 s (hdfs-default.xml,
dfs.client.block.write.locateFollowingBlock)."""

_MENDING = 90.0
"""Seconds for which a file of unknown length waits for its DataNode to do without a silent one: its bytes are not kept,
so it cannot be written elsewhere. With Hadoop's own time-outs that takes 65 s, or 70 for three replicas."""

_CONTINUED, _CONNECTIONS = 1.0, 3
"""Seconds for a DataNode's 100 Continue, which it says before it asks anybody, and connections that are tried for it,
while some DataNode is silent: threads of this one that wait for that one hang, and another connection lands on another
thread. Those that hang leave empty files at worst, which are for gc."""

_PACKET = 64 << 10
"""Bytes after which a DataNode has a block allocated: those of its first packet (dfs.client-write-packet-size)."""

_BETWEEN_LOOKS = 0.02
_LOOKS = 5
"""Looks in a time-out at whether a DataNode that takes no more has taken something."""

_PEEK = 64 << 10

_log = logging.getLogger(__name__)


class DataNodeSink(ConfirmedSink):
    """PUT `target` at the DataNode `address`, which is called `name` in errors, of the file `path`.

    timeout is a reader's, in seconds, and `patience` of them may pass in silence. block_size in bytes, 0 where it is
    not known. Raises HostFailed, of whichever DataNode was silent.
    """

    def __init__(
        self,
        address: str,
        target: str,
        path: str,
        *,
        name: str,
        timeout: float,
        length: int | None,
        patience: int = PATIENCE,
        block_size: int = 0,
        pipelines: PipelineHealth,
        confirm: Callable[[], Status],
        discard: Callable[[int], None],
    ) -> None:
        super().__init__(path, confirm, discard)
        self._name = name
        self._timeout = timeout
        self._patience = patience
        self._length = length
        self._block_size = block_size
        self._pipelines = pipelines
        self._looked = 0
        self._silent_since: float | None = None
        self._received = b""
        self._answered = False
        self._close_later = False
        how = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        head = f"PUT {target} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/octet-stream\r\n{how}\r\n\r\n"
        self._address, self._head = address, head.encode("ascii")
        self._sock = self._asked()
        self._check_accepted()

    def _asked(self) -> socket.socket:
        """A connection over which the file is announced."""
        try:
            sock = connect(self._address, self._timeout)
        except OSError as error:
            raise self._failed(error) from error
        silent_after(sock, self._timeout)
        try:
            sock.sendall(self._head)
        except OSError as error:
            sock.close()
            raise self._failed(error) from error
        return sock

    def _check_accepted(self) -> None:
        """Nothing was written. Another connection takes the place of one that a hanging thread serves."""
        for left in reversed(range(_CONNECTIONS)):
            if not self._pipelines.any_silent or self._ready(select.POLLIN, _CONTINUED):
                return
            self._sock.close()
            if left:
                self._sock = self._asked()
        self._over = "its DataNode hangs"
        raise HostFailed(f"DataNode {self._name} does not go on with {self._path}", host=self._name, stalled=True)

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = memoryview(data).cast("B")
        if not view:
            return  # a chunk of no bytes would end the body
        if self._length is not None:
            self._check_more(len(view), self._length)
        if not self._written:
            self._check_accepted()
        self._written += len(view)
        try:
            if self._has_answered_now():
                raise self._refused()
            if self._length is None:
                self._send(b"%x\r\n" % len(view), view, b"\r\n")
            else:
                self._send(view)
        except OSError as error:
            raise self._why(error) from error
        if self._length is not None and self._written >= _PACKET:
            self._look(self._block(self._written - _PACKET))

    def close(self) -> Status:
        self._check_open()
        if self._length is not None:
            self._check_whole(self._length)
        try:
            if self._length is None:
                self._send(b"0\r\n\r\n")
            elif self._length:
                self._look(self._block(self._length - 1))
            while not self._has_answered(self._timeout):
                self._timed_out()
            self._read_answer()
        except OSError as error:
            raise self._why(error) from error
        return self._closed(self._confirm(), self._name)

    def abort(self) -> None:
        if self._over:
            return
        if not self._answered:
            # Not before the DataNode has let go: it may not even have made the file that is to be removed.
            with contextlib.suppress(OSError, StoreError):
                self._sock.shutdown(socket.SHUT_WR)
                self._read_answer()
        made = not self._over
        self._end(self._over or "it was given up")
        if made:
            self._discard(self._written)

    def _send(self, *pieces: Buffer) -> None:
        """All of the pieces, without putting them together first."""
        send_pieces(self._sock, pieces, self._wait_until_writable)

    def _wait_until_writable(self) -> None:
        """Until it may be that more can be sent."""
        unsent, moved = unsent_bytes(self._sock), time.monotonic()
        while not self._ready(select.POLLOUT, self._timeout / _LOOKS):
            left, now = unsent_bytes(self._sock), time.monotonic()
            if left < unsent:
                unsent, moved = left, now
                self._silent_since = None
            elif now - moved >= self._timeout:
                if self._has_answered_now():
                    raise self._refused()
                self._timed_out()
                return
        self._silent_since = None

    def _timed_out(self) -> None:
        """A time-out has passed without a byte. Raises HostFailed as soon as it is known of whom."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now - self._timeout
        silent_for = now - self._silent_since
        silent_hosts = self._pipelines.silent_hosts(self._path, self._name)
        waiting = bool(silent_hosts) and self._name not in silent_hosts
        if waiting and self._length is not None:
            raise self._given_up(silent_hosts[0])
        if self._name in silent_hosts or silent_for >= (_MENDING if waiting else self._timeout * self._patience):
            self._answered = True  # it will not be waited for again
            raise HostFailed(
                f"DataNode {self._name}, writing {self._path}: no answer within {silent_for:.0f} s",
                host=self._name,
                stalled=True,
            )
        if waiting:
            _log.info("DataNode %s, writing %s, waits for %s, which is silent", self._name, self._path, silent_hosts[0])

    def _block(self, offset: int) -> int:
        return offset // self._block_size if self._block_size else 0

    def _look(self, block: int) -> None:
        """Raises HostFailed when a DataNode that is known to be silent has part in this block, the newest."""
        if block < self._looked or not self._pipelines.any_silent:
            return
        end = time.monotonic() + self._timeout
        while not self._has_answered(_BETWEEN_LOOKS) and time.monotonic() < end:
            count, names = self._pipelines.of(self._path)
            if count > block and names:
                self._looked = block + 1
                if silent := self._pipelines.silent(names):
                    raise self._given_up(silent[0])
                return

    def _given_up(self, silent: str) -> HostFailed:
        """The file need not be written here, since `silent` has part in its block."""
        self._answered = self._close_later = True
        return HostFailed(
            f"DataNode {self._name}, writing {self._path}, waits for {silent}, which is silent",
            host=silent,
            stalled=True,
        )

    def _has_answered(self, timeout: float) -> bool:
        """True if anything of its answer is there, within so many seconds."""
        end = time.monotonic() + timeout
        while not self._has_answered_now():
            if not self._ready(select.POLLIN, max(0.0, end - time.monotonic())):
                return False
        return True

    def _ready(self, event: int, timeout: float) -> bool:
        poll = select.poll()
        poll.register(self._sock, event)
        return bool(poll.poll(timeout * 1000))

    def _has_answered_now(self) -> bool:
        """True if the DataNode has said more than 100 Continue: before the body's end that it failed."""
        with contextlib.suppress(BlockingIOError):
            more = self._sock.recv(_PEEK, socket.MSG_DONTWAIT)
            if not more:
                return True  # its last word is all that came before
            self._received += more
        while self._received.startswith(b"HTTP/1.1 100 ") and b"\r\n\r\n" in self._received:
            self._received = self._received.partition(b"\r\n\r\n")[2]
        return bool(self._received) and not b"HTTP/1.1 100 ".startswith(self._received[:13])

    def _read_answer(self) -> None:
        """Return when the DataNode said that the file is complete; raise what it said else."""
        while True:
            status, headers, self._received = read_head(self._sock, self._name, self._received)
            if status >= 200:
                break
        self._answered = True
        if status not in (200, 201):
            error = refusal(self._sock, status, headers, self._received, self._name, self._path)
            if isinstance(error, Exists | NotFound):
                self._end(error.message)  # nothing of ours is there to be removed
            raise error

    def _refused(self) -> StoreError:
        """The error that the DataNode sent while we were still sending."""
        try:
            self._read_answer()
        except StoreError as error:
            return error
        return HostFailed(f"DataNode {self._name} ended {self._path} early", host=self._name)

    def _why(self, error: OSError) -> StoreError:
        """The error behind a connection that broke: the DataNode's own, where it sent one."""
        if isinstance(error, TimeoutError | BlockingIOError):
            self._answered = True
            return self._failed(error)
        try:
            if self._has_answered_now():
                return self._refused()
        except OSError:
            pass
        return self._failed(error)

    def _failed(self, error: OSError) -> HostFailed:
        stalled = isinstance(error, TimeoutError | BlockingIOError)
        why = reason(error, self._timeout)
        return HostFailed(f"DataNode {self._name}, writing {self._path}: {why}", host=self._name, stalled=stalled)

    def _end(self, why: str) -> None:
        super()._end(why)
        if self._close_later:
            self._pipelines.close_later(self._sock)
        else:
            self._sock.close()


def send_pieces(sock: socket.socket, pieces: Sequence[Buffer], wait: Callable[[], None]) -> None:
    """All of `pieces`, in order; `wait` returns when the socket may take more again. Raises OSError."""
    rest = [memoryview(piece) for piece in pieces]
    while rest:
        try:
            sent = sock.sendmsg(rest, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            wait()
            continue
        while rest and sent >= len(rest[0]):
            sent -= len(rest.pop(0))
        if sent:
            rest[0] = rest[0][sent:]


def unsent_bytes(sock: socket.socket) -> int:
    """Bytes that its peer has not acknowledged yet."""
    return int(struct.unpack("@i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0])
