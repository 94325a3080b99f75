"""Passwords and certificates of the http client."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stripefs.errors import (
    ConfigError,
    HostFailed,
    NotFound,
    PermissionDenied,
    StoreError,
    Transient,
)
from stripefs.settings import StoreSettings
from stripefs.store.url import open_store
from tests.integration.store.http.opening import SIZE, opened, trusted
from tests.support.stores import content
from tests.tools.web_server import WebServer


def test_a_password_in_the_url(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    server.credentials = "me:p@ss/word"
    address = server.url.removeprefix("http://")
    with caplog.at_level(logging.DEBUG):
        store = open_store(StoreSettings(url=f"http://me:p%40ss%2Fword@{address}"))
        handle = store.open(b"/file")
        assert bytes(handle.read(0, 10)) == content(SIZE)[:10]
        with pytest.raises(NotFound) as failure:
            store.stat(b"/nothing")
        store.close()
        for text in (store.url, str(failure.value), handle._where, caplog.text):  # type: ignore[attr-defined]
            assert "ss%2F" not in text
            assert "p@ss" not in text
    store = opened(server)
    with pytest.raises(PermissionDenied, match="netrc"):
        store.stat(b"/file")
    store.close()


def test_a_password_from_netrc(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.credentials = "me:secret"
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    store = opened(server)
    assert store.stat(b"/file").length == SIZE
    store.close()
    (tmp_path / "netrc").write_text("machine 127.0.0.1 shout\n")
    with pytest.raises(ConfigError, match="netrc"):
        opened(server)


def test_a_password_does_not_follow_to_another_host(server: WebServer, tmp_path: Path) -> None:
    with WebServer(tmp_path) as elsewhere:
        server.redirects = {"/away": f"{elsewhere.url}/file"}
        store = open_store(StoreSettings(url=server.url.replace("http://", "http://me:secret@")))
        assert store.stat(b"/away").length == SIZE
        assert "Authorization" in server.seen[-1].headers
        assert "Authorization" not in elsewhere.seen[-1].headers
        store.close()


def test_tls(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = trusted(tmp_path, monkeypatch)
    with WebServer(tmp_path, tls=context) as safe:
        store = opened(safe)
        handle = store.open(b"/file")
        assert bytes(handle.read(100, 50_000)) == content(SIZE)[100:50_100]
        safe.fail("short")
        with pytest.raises(HostFailed):
            handle.read(100, 50_000)
        store.close()
        monkeypatch.delenv("SSL_CERT_FILE")
        store = opened(safe)
        with pytest.raises(StoreError, match="SSL_CERT_FILE") as failure:
            store.stat(b"/file")
        assert not isinstance(failure.value, Transient)
        store.close()
