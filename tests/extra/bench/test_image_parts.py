"""The parts of `bench image` that deal with processes, sockets and pages, each by itself."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.harness import BenchError, delay
from bench.harness.environment import locked
from bench.harness.programs import output, started
from bench.image.local import pages_in_memory

_READY = 'import sys; print(\'{"began": 1.0, "ready": 3.5}\', flush=True); sys.stdin.read()'


@contextmanager
def proxied(rtt: float) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets with the proxy between them."""
    with socket.create_server(("127.0.0.1", 0)) as target, socket.create_server(("127.0.0.1", 0)) as front:
        serving = threading.Thread(target=delay.serve, args=(front, target.getsockname(), rtt))
        serving.start()
        try:
            with socket.create_connection(front.getsockname(), timeout=10) as client:
                server, _ = target.accept()
                server.settimeout(10)
                with server:
                    yield client, server
        finally:
            front.shutdown(socket.SHUT_RDWR)  # close alone does not wake who accepts
            serving.join()


def send_all(sender: socket.socket, content: bytes) -> None:
    sender.sendall(content)
    sender.shutdown(socket.SHUT_WR)


def receive_all(receiver: socket.socket) -> bytes:
    return b"".join(iter(lambda: receiver.recv(1 << 20), b""))


def test_the_proxy_passes_on_all_bytes_both_ways_and_the_end_of_each() -> None:
    sent = os.urandom(3 << 20)
    with proxied(0.002) as (client, server):
        for one, other in ((client, server), (server, client)):
            sender = threading.Thread(target=send_all, args=(one, sent))
            sender.start()
            got = receive_all(other)
            sender.join()
            assert got == sent


def test_the_proxy_ends_the_connection_of_a_client_that_is_gone() -> None:
    with proxied(0.0) as (client, server):
        client.sendall(b"question")
        assert server.recv(100) == b"question"
        client.close()
        assert server.recv(100) == b""


def test_a_start_is_what_the_first_line_says_and_ends_with_its_input() -> None:
    with started([sys.executable, "-c", _READY]) as start:
        assert start.inside == 2.5
        os.kill(start.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(start.pid, 0)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('no such image')", "no such image"),
        ("print('hello')", "did not become ready"),
        (_READY + "; sys.exit('broken')", "ended with 1: broken"),
    ],
)
def test_a_start_that_fails_says_why(program: str, message: str) -> None:
    with pytest.raises(BenchError, match=message), started([sys.executable, "-c", program]):
        pass


def test_a_start_does_not_outlive_what_goes_wrong_meanwhile() -> None:
    with pytest.raises(KeyError), started([sys.executable, "-c", _READY]) as start:
        raise KeyError
    with pytest.raises(ProcessLookupError):
        os.kill(start.pid, 0)


def test_pages_in_memory_are_those_of_files_just_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"x" * 10_000)
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("folder/file")
    os.link(tmp_path / "folder/file", tmp_path / "same")
    assert pages_in_memory(tmp_path) == 3 * 4096


def test_the_work_folder_is_held_once(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(BenchError, match="another benchmark"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_program_that_fails_is_told_with_its_last_line() -> None:
    with pytest.raises(BenchError, match="failed: last"):
        output("sh", "-c", "echo first >&2; echo last >&2; exit 3")
