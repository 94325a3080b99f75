"""A listener on loopback for fakes of servers: each connection is served on a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["listening"]


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
