"""systemd's watchdog: the supervisor tells it that it lives, and replaces a worker that does not answer."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.mounts import PATIENCE, REPLACED, Mounts, eventually, workers_of

pytestmark = pytest.mark.mount


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which a service that is started now reports its state, once in half a second."""
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(PATIENCE)
        yield listener


def test_a_stopped_worker_is_replaced_and_systemd_hears_of_life_all_the_while(
    systemd: socket.socket, mounts: Mounts
) -> None:
    mounts.forgive(REPLACED, "does not answer any more")
    (mounts.source / "file").write_bytes(b"content")
    mounted = mounts.mount(mounts.url())
    first = mounted.worker()
    for _ in range(5):
        assert systemd.recv(64) == b"WATCHDOG=1"
    assert mounted.worker() == first  # which answers
    os.kill(first, signal.SIGSTOP)
    eventually(lambda: first not in workers_of(str(mounted.path)), "the end of the stopped worker")
    assert (mounted.path / "file").read_bytes() == b"content"
    assert systemd.recv(64) == b"WATCHDOG=1"
    assert mounted.status()["restarts"] == 1
