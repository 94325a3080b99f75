"""A worker's answers over sockets."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from stripefs.fuse import control_server
from stripefs.fuse.control_server import ControlServer


@pytest.fixture
def listeners() -> Iterator[tuple[socket.socket, socket.socket]]:
    control, metrics = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    yield control, metrics
    control.close()
    metrics.close()


def answer_once_closed(listener: socket.socket, request: bytes) -> bytes:
    """All that the client finds when it looks only after the server is done with the connection."""
    with socket.create_connection(listener.getsockname()) as client:
        client.sendall(request)
        over = select.poll()
        over.register(client, select.POLLRDHUP | select.POLLHUP)
        over.poll(60_000)
        answer = b""
        while chunk := client.recv(1 << 16):
            answer += chunk
        return answer


@pytest.mark.parametrize("rest", [0, 100, 60_000, 300_000])
async def test_no_answer_is_lost_to_input_that_was_not_read(
    listeners: tuple[socket.socket, socket.socket], nursery: trio.Nursery, rest: int
) -> None:
    nursery.start_soon(ControlServer(listeners, {}, lambda: "figures 1\n").run)
    request = b"GET /metrics HTTP/1.1\r\nCookie: " + b"x" * rest + b"\r\n\r\n"
    answer = await trio.to_thread.run_sync(answer_once_closed, listeners[1], request)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"\r\n\r\nfigures 1\n")


async def test_a_bug_in_an_answer_ends_no_other_one(
    listeners: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    class Panic(BaseException):
        pass

    broken = True

    def figures() -> str:
        if broken:
            raise Panic
        return "figures 1\n"

    nursery.start_soon(ControlServer(listeners, {}, figures).run)
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    assert not await trio.to_thread.run_sync(answer_once_closed, listeners[1], request)
    broken = False
    answer = await trio.to_thread.run_sync(answer_once_closed, listeners[1], request)
    assert answer.endswith(b"figures 1\n")


@pytest.mark.parametrize("terminal", [False, True])
async def test_a_program_that_was_replaced_tells_how_to_go_on(
    listeners: tuple[socket.socket, socket.socket],
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
) -> None:
    """An upgrade in place renames a module that this process has not loaded yet; nothing else can be loaded either."""
    monkeypatch.setattr(control_server, "has_terminal", lambda: terminal)
    monkeypatch.setitem(sys.modules, "stripefs.extras", None)

    async def load(_request: object) -> dict[str, Any]:
        import stripefs.store.earlier_name  # type: ignore[import-not-found]  # noqa: F401

        return {}

    nursery.start_soon(ControlServer(listeners, {"load": load}, str).run)
    answer = await trio.to_thread.run_sync(answer_once_closed, listeners[0], b'{"op": "load"}\n')
    failed = json.loads(answer)["failed"]
    assert failed["message"].startswith("the program is not whole, as when it was upgraded meanwhile: No module named ")
    assert (failed["kind"], failed["exit_code"]) == ("MountError", 32)
    assert failed["hint"].startswith(f"end process {os.getppid()} " if terminal else f"`kill -HUP {os.getppid()}` ")
