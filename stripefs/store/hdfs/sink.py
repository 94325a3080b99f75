"""A new file by WebHDFS at one chosen DataNode, its body sent as it is written.

A DataNode that is asked to CREATE writes through Hadoop's own client on the spot, so every block's first replica is its
own; the further ones are placed as ever. The body goes with its length where that is known, else in chunks, which cost
the same (Hadoop 3.4.2: 0.4 CPU seconds per GB on a busy machine with either). The DataNode says 100 Continue to
everything, then nothing until it is done or has failed; a failure can come at any time, and ends the connection.

A connection that ends early makes the DataNode close the file as if it were whole. So a file that is given up has to
be removed, and a file counts only once the DataNode has said 201 and the NameNode tells the length that was written.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from stripefs.errors import Exists, HostFailed, NotFound, StoreError
from stripefs.store.base import Buffer, Sink, Status
from stripefs.store.hdfs.datanode import read_head, refusal, silent_after
from stripefs.store.hdfs.probe import connect, reason

__all__ = ["PATIENCE", "PlacedSink"]

PATIENCE = 3
"""Time-outs of reading for which a DataNode may be silent while it writes: 15 s by default. It waits by itself, without
a word, for the NameNode to hear of a block's replicas: 400 ms and the double five times over, 12.4 s (hdfs-default.xml,
dfs.client.block.write.locateFollowingBlock)."""

_PEEK = 64 << 10


class PlacedSink(Sink):
    """PUT `target` at the DataNode `address`, which is called `name` in errors, of the file `where`.

    confirm answers the file's status, discard removes what stands there of up to so many bytes; timeout is a reader's,
    in seconds, and so many of them may pass in silence. Raises HostFailed.
    """

    def __init__(
        self,
        address: str,
        target: str,
        where: str,
        *,
        name: str,
        timeout: float,
        length: int | None,
        patience: int = PATIENCE,
        confirm: Callable[[], Status],
        discard: Callable[[int], None],
    ) -> None:
        self._name = name
        self._where = where
        self._timeout = timeout
        self._patience = patience
        self._length = length
        self._confirm = confirm
        self._discard = discard
        self._written = 0
        self._received = b""
        self._answered = False
        self._over = ""
        how = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        head = f"PUT {target} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/octet-stream\r\n{how}\r\n\r\n"
        try:
            self._sock = connect(address, timeout)
        except OSError as error:
            raise self._failed(error) from error
        silent_after(self._sock, timeout * patience)
        try:
            self._sock.sendall(head.encode("ascii"))
        except OSError as error:
            self._sock.close()
            raise self._failed(error) from error

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = memoryview(data).cast("B")
        if not view:
            return  # a chunk of no bytes would end the body
        if self._length is not None and self._written + len(view) > self._length:
            raise StoreError(f"{self._where}: more is written than the {self._length} bytes that were announced")
        self._written += len(view)
        try:
            if self._spoke():
                raise self._refused()
            if self._length is None:
                self._send(b"%x\r\n" % len(view), view, b"\r\n")
            else:
                self._send(view)
        except OSError as error:
            raise self._why(error) from error

    def close(self) -> Status:
        self._check_open()
        if self._length is not None and self._written != self._length:
            raise StoreError(f"{self._where}: {self._written} bytes were written where {self._length} were announced")
        try:
            if self._length is None:
                self._send(b"0\r\n\r\n")
            self._read_answer()
        except OSError as error:
            raise self._why(error) from error
        status = self._confirm()
        if status.length != self._written:
            raise HostFailed(
                f"{self._where} has {status.length} bytes where {self._written} were written", host=self._name
            )
        self._end("it is closed")
        return status

    def abort(self) -> None:
        if self._over:
            return
        if not self._answered:
            # Not before the DataNode has let go: it may not even have made the file that is to be removed.
            with contextlib.suppress(OSError, StoreError):
                silent_after(self._sock, self._timeout)
                self._sock.shutdown(socket.SHUT_WR)
                self._read_answer()
        made = not self._over
        self._end(self._over or "it was given up")
        if made:
            self._discard(self._written)

    def _check_open(self) -> None:
        if self._over:
            raise StoreError(f"{self._where} cannot be written to: {self._over}")

    def _send(self, *pieces: Buffer) -> None:
        """All of the pieces, without putting them together first."""
        if len(pieces) == 1:
            self._sock.sendall(pieces[0])
            return
        sent = self._sock.sendmsg(pieces)
        for piece in pieces:
            if sent < len(piece):
                self._sock.sendall(memoryview(piece)[sent:])
            sent = max(0, sent - len(piece))

    def _spoke(self) -> bool:
        """Whether the DataNode said more than 100 Continue before the body's end: it failed."""
        try:
            more = self._sock.recv(_PEEK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
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
            error = refusal(self._sock, status, headers, self._received, self._name, self._where)
            if isinstance(error, Exists | NotFound):
                self._end(error.message)  # nothing of ours is there to be removed
            raise error

    def _refused(self) -> StoreError:
        """The error that the DataNode sent while we were still sending."""
        try:
            self._read_answer()
        except StoreError as error:
            return error
        return HostFailed(f"DataNode {self._name} ended {self._where} early", host=self._name)

    def _why(self, error: OSError) -> StoreError:
        """The error behind a connection that broke: what the DataNode said about it, where it did."""
        if isinstance(error, TimeoutError | BlockingIOError):
            self._answered = True  # it will not be waited for again
            return self._failed(error)
        try:
            silent_after(self._sock, self._timeout)
            if self._spoke():
                return self._refused()
        except OSError:
            pass
        return self._failed(error)

    def _failed(self, error: OSError) -> HostFailed:
        stalled = isinstance(error, TimeoutError | BlockingIOError)
        why = reason(error, self._timeout * self._patience)
        return HostFailed(f"DataNode {self._name}, writing {self._where}: {why}", host=self._name, stalled=stalled)

    def _end(self, why: str) -> None:
        self._over = why
        self._sock.close()
