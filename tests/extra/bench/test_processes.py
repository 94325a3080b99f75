"""The parts of benchmarks that deal with processes, their CPU time and memory, and sockets, each by itself."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.harness import BenchError, delay
from bench.harness.data import Extent
from bench.harness.processes import PeakMemory, cpu_seconds
from bench.harness.programs import started
from bench.read.driver import cut

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


_BUSY_CHILD = f"""
import subprocess, sys, time
child = subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
while time.process_time() < 0.1: pass
{_READY}
"""
_HOLDS_64_MIB = f"""
held = bytearray(b"x") * (64 << 20)
{_READY}
"""


def test_cpu_time_includes_children_that_have_ended() -> None:
    with started([sys.executable, "-c", _BUSY_CHILD]) as start:
        assert cpu_seconds(start.pid) >= 0.38  # 0.3 + 0.1, less two clock ticks


def test_peak_memory_sees_what_a_child_holds() -> None:
    with started([sys.executable, "-c", _HOLDS_64_MIB]) as start, PeakMemory(start.pid, period=0.01) as memory:
        pass
    assert memory.peak >= 64 << 20


def test_ranges_do_not_cross_blocks() -> None:
    blocks = [Extent(0, 20, ("a",)), Extent(20, 5, ("b",))]
    assert [(e.offset, e.length, e.hosts) for e in cut(blocks, 8)] == [
        (0, 8, ("a",)),
        (8, 8, ("a",)),
        (16, 4, ("a",)),
        (20, 5, ("b",)),
    ]
