"""What a worker answers besides the kernel: the control socket and, when asked for, metrics over HTTP.

Control: one connection, one request line of JSON, one answer line of JSON. `{"v": 1, "op": "status"}` → the status;
`{"v": 1, "op": "stop"}` → `{"v": 1, "stopping": true}`; anything else → `{"v": 1, "error": "…"}`.
The listening sockets belong to the supervisor, so a client that comes while a worker is being replaced just waits.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import trio

__all__ = ["Service"]

_log = logging.getLogger(__name__)

_TIMEOUT = 10.0
_ACCEPT_AGAIN = 1.0
_LONGEST_REQUEST = 1 << 16


class Service:
    """`listeners` are the control socket and perhaps the metrics socket. `status` answers a JSON-able dictionary."""

    def __init__(
        self, listeners: Sequence[socket.socket], status: Callable[[], dict[str, Any]], stop: Callable[[], None]
    ) -> None:
        self._listeners = listeners
        self._status = status
        self._stop = stop

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for listener, answer in zip(self._listeners, (self._control, self._metrics), strict=False):
                nursery.start_soon(self._accept, listener, answer)

    async def _accept(self, listener: socket.socket, answer: Callable[[bytes], bytes]) -> None:
        listening = trio.socket.from_stdlib_socket(listener)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await listening.accept()
                except OSError as error:  # out of descriptors, or the client is gone already
                    _log.warning("a connection could not be accepted: %s", error)
                    await trio.sleep(_ACCEPT_AGAIN)
                    continue
                nursery.start_soon(self._talk, trio.SocketStream(connection), answer)

    async def _talk(self, stream: trio.SocketStream, answer: Callable[[bytes], bytes]) -> None:
        with trio.move_on_after(_TIMEOUT):
            async with stream:
                try:
                    request = b""
                    while b"\n" not in request and len(request) < _LONGEST_REQUEST:
                        chunk = await stream.receive_some()
                        if not chunk:
                            return
                        request += chunk
                    await stream.send_all(answer(request))
                except trio.BrokenResourceError:
                    _log.debug("a client left before its answer")
                except Exception:  # noqa: BLE001
                    # A figure that cannot be shown must never end the mount.
                    _log.exception("a request of %d bytes could not be answered", len(request))

    def _control(self, request: bytes) -> bytes:
        answer: dict[str, Any]
        try:
            operation = json.loads(request).get("op")
        except (ValueError, AttributeError):
            operation = None
        if operation == "status":
            answer = self._status()
        elif operation == "stop":
            self._stop()
            answer = {"v": 1, "stopping": True}
        else:
            answer = {"v": 1, "error": "the request must be a JSON object with op status or stop"}
        return json.dumps(answer, default=str).encode() + b"\n"

    def _metrics(self, request: bytes) -> bytes:
        from stripefs.metrics import render

        if not request.startswith(b"GET "):
            return _http("405 Method Not Allowed", "only GET\n")
        if request.split(b" ")[1].split(b"?")[0] != b"/metrics":
            return _http("404 Not Found", "see /metrics\n")
        return _http("200 OK", render(self._status()))


def _http(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
