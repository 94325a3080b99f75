"""Control server of a worker: it answers the control socket and, when asked for, metrics over HTTP.

Control: one connection, one request line of JSON, one answer line of JSON. `{"v": 1, "op": "status"}` → the status;
`{"v": 1, "op": "stop"}` → `{"v": 1, "stopping": true}`; a worker may know more. An unknown request is answered by
`{"v": 1, "error": "…"}`, a failure by `{"v": 1, "failed": {"kind", "message", "hint"}}`. A worker whose program was
replaced under it, so that modules that it has not loaded yet are those of another version, says how to replace it too.
The listening sockets belong to the supervisor, so a client that comes while a worker is being replaced just waits.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from stripefs.background import contain
from stripefs.errors import MountError, StripefsError
from stripefs.extras import missing
from stripefs.fuse.ipc import describe_error
from stripefs.osutil import has_terminal

__all__ = ["ControlServer", "Request", "newer_worker"]

Request = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Answers one kind of request; raises StripefsError for what went wrong."""

_log = logging.getLogger(__name__)

_TIMEOUT = 10.0
_ACCEPT_AGAIN = 1.0
_LONGEST_REQUEST = 1 << 16
_DRAIN = 2.0
"""Seconds for which the rest of a request is read after its answer: a socket that is closed with unread input resets
the connection, and the client may lose the answer."""


def newer_worker() -> str:
    """The remedy for a worker of another version than its program: its parent, the supervisor, starts the next one, and
    ends with its terminal if it has one."""
    if has_terminal():
        return f"end process {os.getppid()} and start it again"
    return f"`kill -HUP {os.getppid()}` has the next worker run from the new one"


class ControlServer:
    """`listeners` are the control socket and perhaps the metrics socket. `requests` answers each operation by name."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        requests: Mapping[str, Request],
        metrics: Callable[[], str],
    ) -> None:
        self._listeners = listeners
        self._requests = requests
        self._metrics = metrics

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for listener, answer in zip(self._listeners, (self._control, self._scrape), strict=False):
                nursery.start_soon(self._accept, listener, answer)

    async def _accept(self, listener: socket.socket, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        listening = trio.socket.from_stdlib_socket(listener)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await listening.accept()
                except OSError as error:  # out of descriptors, or the client is gone already
                    _log.warning("a connection could not be accepted: %s", error)
                    await trio.sleep(_ACCEPT_AGAIN)
                    continue
                nursery.start_soon(contain, "answering a client", self._talk, trio.SocketStream(connection), answer)

    async def _talk(self, stream: trio.SocketStream, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        async with stream:
            try:
                with trio.fail_after(_TIMEOUT):
                    request = await _receive(stream)
                if request:
                    reply = await answer(request)
                    with trio.fail_after(_TIMEOUT):
                        await stream.send_all(reply)
                        await stream.send_eof()
                    with trio.move_on_after(_DRAIN):
                        await _drain(stream)
            except (trio.BrokenResourceError, trio.TooSlowError):
                _log.debug("a client left before its answer")

    async def _control(self, request: bytes) -> bytes:
        try:
            asked = json.loads(request)
            version, operation = asked.get("v", 1), asked.get("op")
        except (ValueError, AttributeError):
            version, operation = 1, None
        answer: dict[str, Any]
        if version != 1:
            answer = {"error": f"version {version!r} is not spoken here, only 1"}
        elif operation not in self._requests:
            answer = {"error": f"the request must be a JSON object with op {' or '.join(sorted(self._requests))}"}
        else:
            try:
                answer = await self._requests[operation](asked)
            except StripefsError as error:
                answer = {"failed": describe_error(error)}
            except Exception as error:  # noqa: BLE001  a request that cannot be answered must never end the mount
                answer = self._unexpected(operation, error)
        return json.dumps({"v": 1, **answer}, default=str).encode() + b"\n"

    @staticmethod
    def _unexpected(operation: str, error: Exception) -> dict[str, Any]:
        if isinstance(error, ImportError) and (told := missing(error, newer_worker())) is not None:
            _log.error("the request %s could not be answered: %s; %s", operation, told.message, told.hint)
            return {"failed": describe_error(MountError(told.message, hint=told.hint))}
        _log.exception("the request %s could not be answered", operation)
        return {"error": f"{type(error).__name__}: {error}"}

    async def _scrape(self, request: bytes) -> bytes:
        if not request.startswith(b"GET "):
            return _http("405 Method Not Allowed", "only GET\n")
        if request.split(b" ")[1].split(b"?")[0] != b"/metrics":
            return _http("404 Not Found", "see /metrics\n")
        try:
            return _http("200 OK", self._metrics())
        except Exception:  # noqa: BLE001  a figure that cannot be shown must never end the mount
            _log.exception("metrics could not be shown")
            return _http("500 Internal Server Error", "see the log\n")


async def _receive(stream: trio.SocketStream) -> bytes:
    """A request up to its line's end; empty when the client left before."""
    request = b""
    while b"\n" not in request and len(request) < _LONGEST_REQUEST:
        chunk = await stream.receive_some()
        if not chunk:
            return b""
        request += chunk
    return request


async def _drain(stream: trio.SocketStream) -> None:
    """Read until the client closes its side, a bounded number of bytes."""
    left = 1 << 20
    while left > 0 and (chunk := await stream.receive_some()):
        left -= len(chunk)


def _http(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
