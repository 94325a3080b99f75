import socket
from pathlib import Path

import pytest

from stripefs.notify import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    path = str(tmp_path / "socket")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{path}" if abstract else path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{path}" if abstract else path)
        assert notify("READY=1")
        assert systemd.recv(64) == b"READY=1"


@pytest.mark.parametrize("value", [None, "", "relative"])
def test_nobody_asked(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if value is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", value)
    assert not notify("READY=1")


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    assert not notify("READY=1")
    assert "systemd could not be told READY=1" in caplog.text
