"""WebHDFS at one chosen DataNode: one range of one file, received into one buffer, and what `sink` shares with that.

The socket is read directly: MSG_WAITALL with a receive time-out of the kernel's takes one system call where
http.client takes a poll and a read for every 64 to 200 KiB (bench/transports.py: a third less client CPU). A DataNode
closes the connection after each answer, so there is nothing to pool.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Mapping

from stripefs.errors import Abandoned, HostFailed, StoreError
from stripefs.store.allocator import uninitialised
from stripefs.store.base import Watch
from stripefs.store.hdfs.probe import connect, reason
from stripefs.store.hdfs.wire import remote_error

__all__ = ["fetch", "read_head", "refusal", "silent_after"]

_STEP = 1 << 20  # between two reports of progress
_HEAD = 64 << 10  # longest response head that we accept
_ERROR_BODY = 64 << 10


def fetch(address: str, target: str, length: int, *, name: str, timeout: float, watch: Watch | None) -> bytearray:
    """Exactly `length` > 0 bytes that GET `target` at the DataNode `address` answers.

    `name` is the host for errors, `timeout` the seconds without a byte after which it counts as silent. Raises
    HostFailed for everything that speaks against the host, Abandoned, and what the DataNode itself reports.
    """
    try:
        with contextlib.closing(connect(address, timeout)) as sock, _cancellable(sock, watch):
            silent_after(sock, timeout)
            sock.sendall(f"GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode("ascii"))
            status, headers, body = read_head(sock, name)
            if status != 200:
                raise refusal(sock, status, headers, body, name)
            if headers.get("content-length") != str(length):
                answered = headers.get("content-length", "an unknown number of")
                raise HostFailed(f"DataNode {name} offered {answered} bytes where {length} were asked for", host=name)
            return _receive(sock, body, length, name, watch)
    except OSError as error:
        if watch is not None and watch.cancelled:
            raise Abandoned(f"read from DataNode {name} was cancelled") from error
        stalled = isinstance(error, TimeoutError | BlockingIOError)
        raise HostFailed(f"DataNode {name}: {reason(error, timeout)}", host=name, stalled=stalled) from error
    except HostFailed as error:
        if watch is not None and watch.cancelled:  # a socket shut down by cancelling looks like an early end
            raise Abandoned(f"read from DataNode {name} was cancelled") from error
        raise


@contextlib.contextmanager
def _cancellable(sock: socket.socket, watch: Watch | None) -> Iterator[None]:
    if watch is None:
        yield
        return
    watch.on_cancel(lambda: _shut_down(sock))
    try:
        if watch.cancelled:
            raise Abandoned("read was cancelled before it began")
        yield
    finally:
        watch.on_cancel(None)


def _shut_down(sock: socket.socket) -> None:
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


def _receive(sock: socket.socket, begun: bytes, length: int, name: str, watch: Watch | None) -> bytearray:
    buffer = uninitialised(length)
    begun = begun[:length]
    buffer[: len(begun)] = begun
    received = len(begun)
    with memoryview(buffer) as view:
        while received < length:
            count = sock.recv_into(view[received : received + _STEP], 0, socket.MSG_WAITALL)
            if not count:
                raise HostFailed(f"DataNode {name} stopped after {received} of {length} bytes", host=name)
            received += count
            if watch is not None:
                watch.progress(received)
    return buffer


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
    # What we have no class for happened inside this DataNode: a missing block, a full disk, too many connections.
    return HostFailed(f"DataNode {name}: {error.message}", host=name) if type(error) is StoreError else error
