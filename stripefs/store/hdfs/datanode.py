"""WebHDFS at one chosen DataNode: the answer to one OPEN, in one piece or several; shared by `datanode_write`.

The socket is read directly: MSG_WAITALL with a receive time-out of the kernel's takes one system call where
http.client takes a poll and a read for every 64 to 200 KiB (measured: a third less client CPU). A DataNode
closes the connection after each answer, so there is nothing to pool; the next bytes of a file may come out of the same
answer, though (`read_streams`).
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Mapping

from stripefs.errors import Abandoned, HostFailed, StoreError
from stripefs.store.base import Watch
from stripefs.store.buffers import aligned
from stripefs.store.hdfs.probe import connect, reason
from stripefs.store.hdfs.wire import remote_error

__all__ = ["Answer", "cancellable", "read_head", "refusal", "shut_down", "silent_after"]

_STEP = 1 << 20  # between two reports of progress
_HEAD = 64 << 10  # longest response head that we accept
_ERROR_BODY = 64 << 10


class Answer:
    """The `length` > 0 bytes that GET `target` at the DataNode `address` answers, asked for by the first `take`.

    `name` is the host for errors, `timeout` the seconds without a byte after which it counts as silent. `window`: bytes
    that may be on their way or in the kernel before anybody takes them, 0 for as many as the kernel likes. One thread
    at a time; `close` may come from any, while nobody takes, and `shut` at any time.
    """

    def __init__(self, address: str, target: str, length: int, *, name: str, timeout: float, window: int = 0) -> None:
        self._address = address
        self._target = target
        self._length = length
        self._name = name
        self._timeout = timeout
        self._window = window
        self._sock: socket.socket | None = None
        self._begun = b""

    def take(self, length: int, watch: Watch | None) -> memoryview:
        """The next `length` > 0 bytes, of those that are left.

        Raises HostFailed for everything that speaks against the host, Abandoned, and what the DataNode itself reports.
        After an error nothing more can be taken.
        """
        try:
            first = self._sock is None
            sock = self._connected() if self._sock is None else self._sock
            with cancellable(sock, watch):
                if first:
                    self._ask(sock)
                return self._receive(sock, length, watch)
        except OSError as error:
            if watch is not None and watch.cancelled:
                raise Abandoned(f"read from DataNode {self._name} was cancelled") from error
            stalled = isinstance(error, TimeoutError | BlockingIOError)
            why = reason(error, self._timeout)
            raise HostFailed(f"DataNode {self._name}: {why}", host=self._name, stalled=stalled) from error
        except HostFailed as error:
            if watch is not None and watch.cancelled:  # a socket shut down by cancelling looks like an early end
                raise Abandoned(f"read from DataNode {self._name} was cancelled") from error
            raise

    def shut(self) -> None:
        """End a `take` that is under way in another thread."""
        if self._sock is not None:
            shut_down(self._sock)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _connected(self) -> socket.socket:
        sock = self._sock = connect(self._address, self._timeout, self._window)
        silent_after(sock, self._timeout)
        return sock

    def _ask(self, sock: socket.socket) -> None:
        name = self._name
        sock.sendall(
            f"GET {self._target} HTTP/1.1\r\nHost: {self._address}\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        status, headers, body = read_head(sock, name)
        if status != 200:
            raise refusal(sock, status, headers, body, name)
        if headers.get("content-length") != str(self._length):
            offered = headers.get("content-length", "an unknown number of")
            raise HostFailed(f"DataNode {name} offered {offered} bytes where {self._length} were asked for", host=name)
        self._begun = body[: self._length]

    def _receive(self, sock: socket.socket, length: int, watch: Watch | None) -> memoryview:
        buffer = aligned(length)  # so that a cache on disk takes it as it is
        received = min(len(self._begun), length)
        buffer[:received] = self._begun[:received]
        self._begun = self._begun[received:]
        while received < length:
            count = sock.recv_into(buffer[received : received + _STEP], 0, socket.MSG_WAITALL)
            if not count:
                raise HostFailed(f"DataNode {self._name} stopped after {received} of {length} bytes", host=self._name)
            received += count
            if watch is not None:
                watch.progress(received)
        return buffer


@contextlib.contextmanager
def cancellable(sock: socket.socket, watch: Watch | None) -> Iterator[None]:
    if watch is None:
        yield
        return
    watch.on_cancel(lambda: shut_down(sock))
    try:
        if watch.cancelled:
            raise Abandoned("read was cancelled before it began")
        yield
    finally:
        watch.on_cancel(None)


def shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may have ended by itself
        sock.shutdown(socket.SHUT_RDWR)


def silent_after(sock: socket.socket, timeout: float) -> None:
    """Let the kernel end a receive or a send after `timeout` seconds without a byte (it tells what came or went)."""
    sock.settimeout(None)
    seconds, rest = divmod(timeout, 1.0)
    limit = struct.pack("@ll", int(seconds), int(rest * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def read_head(sock: socket.socket, name: str, received: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Status, headers with lower-case names, and the bytes that came along behind them; `received` came before."""
    while b"\r\n\r\n" not in received:
        more = sock.recv(_HEAD)
        if not more or len(received) > _HEAD:
            raise HostFailed(f"DataNode {name} ended its answer before it began", host=name)
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise HostFailed(f"DataNode {name} does not speak HTTP at its web port", host=name)
    headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return int(words[1]), headers, body


def refusal(
    sock: socket.socket, status: int, headers: Mapping[str, str], body: bytes, name: str, where: str = "file"
) -> StoreError:
    """The error that a DataNode's answer about `where` other than 200 means; `body` is what came of its body."""
    length = headers.get("content-length", "")
    whole = min(int(length), _ERROR_BODY) if length.isdigit() else _ERROR_BODY
    while len(body) < whole and (more := sock.recv(_ERROR_BODY)):
        body += more
    try:
        remote = json.loads(body)["RemoteException"]
        error = remote_error(str(remote.get("javaClassName") or remote["exception"]), str(remote["message"]), where)
    except (ValueError, KeyError, TypeError, AttributeError):
        return HostFailed(f"DataNode {name} answered {status}", host=name)
    # An error without a class of ours arose in this DataNode: a missing block, a full disk, too many connections.
    return HostFailed(f"DataNode {name}: {error.message}", host=name) if type(error) is StoreError else error
