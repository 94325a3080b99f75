import os
import socket
from pathlib import Path

import pytest

from stripefs.systemd import Watchdog, notify, watchdog_period


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    path = str(tmp_path / "socket")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{path}" if abstract else path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{path}" if abstract else path)
        assert notify("READY=1")
        assert systemd.recv(64) == b"READY=1"


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for value in ("", "relative"):
        monkeypatch.setenv("NOTIFY_SOCKET", value)
        assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    assert not notify("READY=1")
    assert "systemd could not be told READY=1" in caplog.text


@pytest.mark.parametrize(
    ("environ", "period"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "60000000"}, 15.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdog_of_systemd_is_told_four_times_in_its_patience(environ: dict[str, str], period: float) -> None:
    assert watchdog_period(environ) == period


def test_ticks_come_once_a_period_however_late_they_are_looked_for() -> None:
    without = Watchdog(0.0, 100.0)
    assert (without.wait(1e9), without.tick(1e9)) == (None, False)
    watchdog = Watchdog(10.0, 100.0)
    assert watchdog.wait(104.0) == 6.0
    assert not watchdog.tick(109.9)
    assert watchdog.tick(135.0)
    assert watchdog.wait(135.0) == 10.0
    assert not watchdog.tick(136.0)


def test_silence_counts_from_the_last_answer_and_only_while_one_is_expected() -> None:
    watchdog = Watchdog(10.0, 0.0)
    assert not watchdog.silent(1000.0)  # it has not begun
    watchdog.expect(1000.0)
    assert not watchdog.silent(1030.0)
    assert watchdog.silent(1030.1)
    watchdog.heard(1030.1)
    assert not watchdog.silent(1060.1)
    watchdog.excuse()
    watchdog.heard(1070.0)  # too late: that one was excused
    assert not watchdog.silent(9999.0)
