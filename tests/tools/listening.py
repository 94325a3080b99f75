"""Servers and listeners on loopback for fakes: each connection is served on a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["accepts", "free_port", "http_server", "listening"]


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address ip:port at which it listens until the block ends. Connections then are the caller's to close."""

    def accept() -> None:
        while True:
            try:
                sock = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=[sock], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def http_server(
    handler: Callable[..., BaseHTTPRequestHandler], kind: type[ThreadingHTTPServer] = ThreadingHTTPServer
) -> Iterator[ThreadingHTTPServer]:
    """A server on a port of its own, which runs until the block ends."""
    with kind(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def free_port() -> int:
    """A port on loopback where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """True if something listens at a port on loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
