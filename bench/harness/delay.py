"""A TCP proxy that gives a link its round trip time, where the kernel has no netem.

    python -m bench.harness.delay RTT LISTEN=TARGET ...      RTT in seconds, LISTEN and TARGET as ADDRESS:PORT

Bytes leave it half a round trip after they came, either way, as many as come: it delays and never slows down. The first
bytes of a connection wait a round trip more, which the handshake would take, since the kernel answers that at once.
It cannot show TCP's slow start. Prints "ready" once it listens. Threads, because timers of event loops count in
milliseconds.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence

__all__ = ["main", "serve"]

_STEP = 256 << 10
_HELD = 64  # chunks under way in one direction of a connection; the rate of the link times 5 ms is about four


def main(arguments: Sequence[str]) -> None:
    rtt = float(arguments[0])
    for pair in arguments[1:]:
        listen, _, target = pair.partition("=")
        listener = socket.create_server(_address(listen), backlog=256)
        threading.Thread(target=serve, args=(listener, _address(target), rtt), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


def serve(listener: socket.socket, target: tuple[str, int], rtt: float) -> None:
    """Accept until the listener is closed."""
    with contextlib.suppress(OSError):  # closed
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect, args=(client, target, rtt), daemon=True).start()


def _connect(client: socket.socket, target: tuple[str, int], rtt: float) -> None:
    accepted = time.monotonic()
    try:
        server = socket.create_connection(target)
    except OSError:
        client.close()
        return
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    there = threading.Thread(target=_carry, args=(client, server, accepted + rtt, rtt / 2), daemon=True)
    there.start()
    _carry(server, client, accepted, rtt / 2)
    there.join()
    client.close()
    server.close()


def _carry(source: socket.socket, target: socket.socket, earliest: float, delay: float) -> None:
    """Pass on what comes until it ends, each piece `delay` seconds after it came or after `earliest`."""
    under_way: queue.Queue[tuple[float, bytes]] = queue.Queue(_HELD)
    sender = threading.Thread(target=_send, args=(target, under_way), daemon=True)
    sender.start()
    piece = b"?"
    while piece:
        try:
            piece = source.recv(_STEP)
        except OSError:
            piece = b""  # reset: for the other side it ends here
        under_way.put((max(time.monotonic(), earliest) + delay, piece))
    sender.join()


def _send(target: socket.socket, under_way: queue.Queue[tuple[float, bytes]]) -> None:
    """Send each piece at its time, and drop it when the receiver is gone, so that the sender never blocks."""
    open_ = True
    while True:
        due, piece = under_way.get()
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        try:
            if piece and open_:
                target.sendall(piece)
            elif open_:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            open_ = False
        if not piece:
            return


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main(sys.argv[1:])
