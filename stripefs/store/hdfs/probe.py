"""Probe of the service that listens at an address, in one round trip, for error lines that help.

A NameNode's RPC port answers an HTTP request with a sentence of its own, so one GET tells the RPC port, a web port and
anything else apart. hdfs-native would try a web port given as RPC port for 168 s (measured, 0.14.7).
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from contextlib import closing

from stripefs.errors import ServiceDown

__all__ = ["answers", "check_rpc", "connect", "reason"]

_IPC = b"Hadoop IPC port"
_RCVBUFFORCE = 33  # socket(7); Python has no name for it
_REQUEST = b"GET / HTTP/1.1\r\nHost: namenode\r\nConnection: close\r\n\r\n"
_SIGN = b"OPTIONS /webhdfs/v1/?op=CREATE HTTP/1.1\r\nHost: datanode\r\nConnection: close\r\n\r\n"
"""A request that a DataNode answers by itself. One that does not know it refuses it, which is a sign too."""


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
