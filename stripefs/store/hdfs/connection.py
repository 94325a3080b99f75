"""Connections to one NameNode or DataNode: made, checked, watched, kept while idle, and WebHDFS's answer to one OPEN.

**Check of an address** (`check_rpc`), in one round trip, for error lines that help. A NameNode's RPC port answers an
HTTP request with a sentence of its own, so one GET tells the RPC port, a web port and anything else apart. hdfs-native
would try a web port given as RPC port for 168 s (measured, 0.14.7).

**Answer.** The bytes of one OPEN come in one piece or several. The socket is read directly: MSG_WAITALL with a receive
time-out of the kernel's takes one system call where http.client takes a poll and a read for every 64 to 200 KiB
(measured: a third less client CPU). A DataNode closes the connection after each answer, so there is nothing to pool;
the next bytes of a file may come out of the same answer, though (`read_streams`).
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Generic, Protocol, TypeVar

from stripefs.errors import Abandoned, HostFailed, ServiceDown, StoreError
from stripefs.store.allocator import aligned
from stripefs.store.base import Watch
from stripefs.store.common import cancellable
from stripefs.store.hdfs.wire import error_in

__all__ = [
    "Answer",
    "IdlePool",
    "answers",
    "check_rpc",
    "connect",
    "read_head",
    "reason",
    "refusal",
    "shut_down",
    "silent_after",
]


class _Closeable(Protocol):
    def close(self) -> None: ...


_Connection = TypeVar("_Connection", bound=_Closeable)

_IPC = b"Hadoop IPC port"
_RCVBUFFORCE = 33  # socket(7); Python has no name for it
_REQUEST = b"GET / HTTP/1.1\r\nHost: namenode\r\nConnection: close\r\n\r\n"
_SIGN = b"OPTIONS /webhdfs/v1/?op=CREATE HTTP/1.1\r\nHost: datanode\r\nConnection: close\r\n\r\n"
"""A request that a DataNode answers by itself. One that does not know it refuses it, which is a sign too."""

_STEP = 1 << 20  # between two reports of progress
_HEAD = 64 << 10  # longest response head that we accept
_ERROR_BODY = 64 << 10


def connect(address: str, timeout: float, window: int = 0) -> socket.socket:
    """A TCP connection to host:port without Nagle's delay. Raises OSError.

    `window`: bytes that may wait in the kernel to be received, 0 for as many as it likes.
    """
    host, _, port = address.rpartition(":")
    failure: OSError | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            if window:
                _bound(sock, window)  # now: the window of a connection that stands does not grow to it
            sock.settimeout(timeout)
            sock.connect(target)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError("the name has no address")


def _bound(sock: socket.socket, window: int) -> None:
    """The kernel takes half of a socket's buffer for its own account of it, and doubles what is asked for."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, window)
    except PermissionError:  # then it is net.core.rmem_max at most, 208 KiB by default
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)


def reason(error: OSError, timeout: float) -> str:
    """The reason for which a connection failed, in words for an error line."""
    if isinstance(error, socket.gaierror):
        return "this name does not resolve"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, TimeoutError | BlockingIOError):
        return f"no answer within {timeout:g} s"
    return error.strerror or str(error) or type(error).__name__


def answers(address: str, timeout: float, connections: int) -> bool:
    """True if a DataNode's web port at `address` says anything within `timeout` seconds on any of `connections`.

    One that refuses connections is no silent one: its clients learn so at once.
    """
    end = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        for _ in range(connections):
            try:
                sock = stack.enter_context(connect(address, max(0.01, end - time.monotonic())))
                sock.sendall(_SIGN)
            except ConnectionRefusedError:
                return True
            except OSError:
                continue
            poll.register(sock, select.POLLIN)
        return bool(poll.poll(max(0.0, end - time.monotonic()) * 1000))


def check_rpc(address: str, timeout: float) -> None:
    """Return when a NameNode's RPC server answers at `address`. Raises ServiceDown that says what is there instead."""
    try:
        with closing(connect(address, timeout)) as sock:
            sock.sendall(_REQUEST)
            answer = b""
            while _IPC not in answer and len(answer) < 4096 and (more := sock.recv(4096)):
                answer += more
    except OSError as error:
        why, unknown = reason(error, timeout), isinstance(error, socket.gaierror)
        hint = (
            "an HA nameservice needs --hadoop-conf DIR"
            if unknown
            else "is this the NameNode's RPC port (8020 or 9000)?"
        )
        raise ServiceDown(f"NameNode {address}: {why}", hint=hint) from error
    if _IPC in answer:
        return
    if answer.startswith(b"HTTP/"):
        raise ServiceDown(f"NameNode {address} is a web port", hint="give the RPC port, usually 8020 or 9000")
    raise ServiceDown(f"{address} is not a NameNode's RPC port", hint="it is usually 8020 or 9000")


class IdlePool(Generic[_Connection]):
    """Idle connections, at most `most` to each address, each for `seconds`. Safe to use from many threads.

    Where that is not for ever a thread, which ends with the last of them, closes those that nobody took.
    """

    def __init__(self, most: float, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[float, _Connection]]] = {}
        self._sweeping = False
        self._closed = threading.Event()

    def take(self, address: str) -> _Connection | None:
        """The one that was kept last, which its server may have closed since; None where there is none."""
        while True:
            with self._lock:
                idle = self._idle.get(address)
                if not idle:
                    return None
                since, connection = idle.pop()
            if time.monotonic() - since < self.seconds:
                return connection
            connection.close()

    def keep(self, address: str, connection: _Connection) -> None:
        """Keep it for the next `take`, or close it where there are enough."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if not self._closed.is_set() and len(idle) < self._most:
                idle.append((time.monotonic(), connection))
                if self.seconds < math.inf and not self._sweeping:
                    self._sweeping = True
                    threading.Thread(target=self._sweep, name="idle connections", daemon=True).start()
                return
        connection.close()

    def close(self) -> None:
        """Close those that are idle; those in use are closed when they are brought back."""
        with self._lock:
            self._closed.set()
            expired = self._expired(math.inf)
        for connection in expired:
            connection.close()

    def _expired(self, before: float) -> list[_Connection]:
        """Take out, and answer, the connections that are idle since `before`."""
        expired = [connection for each in self._idle.values() for since, connection in each if since <= before]
        fresh = {address: [one for one in each if one[0] > before] for address, each in self._idle.items()}
        self._idle = {address: each for address, each in fresh.items() if each}
        return expired

    def _sweep(self) -> None:
        while self._sweeping:
            self._closed.wait(self.seconds)
            with self._lock:
                expired = self._expired(time.monotonic() - self.seconds)
                self._sweeping = bool(self._idle)
            for connection in expired:
                connection.close()


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
            with cancellable(watch, partial(shut_down, sock)):
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
        error = error_in(json.loads(body), where)
    except ValueError:
        error = None
    if error is None:
        return HostFailed(f"DataNode {name} answered {status}", host=name)
    # An error without a class of ours arose in this DataNode: a missing block, a full disk, too many connections.
    return HostFailed(f"DataNode {name}: {error.message}", host=name) if type(error) is StoreError else error
