"""The http client against a server that does as it should not, reads that are given up, passwords and certificates."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stripefs.errors import (
    ConfigError,
    HostFailed,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.settings import StoreSettings
from stripefs.store.base import Handle, Store
from stripefs.store.url import open_store
from tests.integration.store.http.opening import SIZE, opened, trusted
from tests.support.stores import RecordingWatch, cancel_on_the_way, content
from tests.tools.web_server import Fault, WebServer

# Faults


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("short", HostFailed),
        ("reset-body", HostFailed),
        ("shifted", HostFailed),
        ("fewer", HostFailed),
        ("more", HostFailed),
        ("unmarked", HostFailed),
        ("429", HostFailed),
        ("500", HostFailed),
        ("503", HostFailed),
        ("401", PermissionDenied),
        ("403", PermissionDenied),
        ("407", PermissionDenied),
        ("404", StaleVersion),
        ("416", StoreError),
        ("418", StoreError),
        ("encoded", Unsupported),
        ("whole", Unsupported),
    ],
)
def test_a_read_that_fails(server: WebServer, handle: Handle, fault: Fault, kind: type[StoreError]) -> None:
    server.fail(fault)
    with pytest.raises(StoreError, match="/file") as failure:
        handle.read(100, 50_000)
    assert type(failure.value) is kind
    assert server.count("GET") == 1
    assert bytes(handle.read(100, 50_000)) == content(SIZE)[100:50_100]


@pytest.mark.parametrize("fault", ["closed", "reset", "garbage"])
def test_a_connection_that_breaks_is_replaced_once(server: WebServer, handle: Handle, fault: Fault) -> None:
    server.fail(fault)
    assert bytes(handle.read(0, 1000)) == content(SIZE)[:1000]
    server.fail(fault, times=2)
    with pytest.raises(HostFailed):
        handle.read(0, 1000)
    assert bytes(handle.read(0, 1000)) == content(SIZE)[:1000]


@pytest.mark.parametrize("fault", ["silent", "stuck"])
def test_a_server_that_falls_silent(server: WebServer, fault: Fault) -> None:
    store = opened(server, timeout=0.2)
    handle = store.open(b"/file")
    server.fail(fault)
    with pytest.raises(HostFailed, match=r"within 0\.2 s") as failure:
        handle.read(0, SIZE)
    assert failure.value.stalled
    assert bytes(handle.read(0, SIZE)) == content(SIZE)
    server.fail("silent", method="HEAD")
    with pytest.raises(ServiceDown, match=r"within 0\.2 s"):
        store.stat(b"/file")
    store.close()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        *(("503", ServiceDown), ("404", NotFound), ("403", PermissionDenied), ("418", StoreError)),
        ("encoded", Unsupported),
    ],
)
def test_a_status_that_fails(server: WebServer, store: Store, fault: Fault, kind: type[StoreError]) -> None:
    server.fail(fault, method="HEAD")
    with pytest.raises(StoreError, match="/file") as failure:
        store.stat(b"/file")
    assert type(failure.value) is kind


def test_answers_that_are_whole_or_of_unannounced_length(server: WebServer, store: Store, handle: Handle) -> None:
    server.fail("chunked")
    assert bytes(handle.read(5, 50_000)) == content(SIZE)[5:50_005]
    server.fail("whole")
    assert bytes(handle.read(0, SIZE)) == content(SIZE)
    server.lengths = False
    assert bytes(handle.read(5, 50_000)) == content(SIZE)[5:50_005]
    with pytest.raises(Unsupported, match="length"):
        store.open(b"/file")


def test_nobody_listens() -> None:
    store = open_store(StoreSettings(url="http://127.0.0.1:9/file"))
    with pytest.raises(ServiceDown, match="refused"):
        store.stat(b"/x")
    store.close()


# Giving up


@pytest.mark.parametrize("tls", [False, True])
def test_a_stuck_read_ends_when_it_is_cancelled(tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(content(SIZE))
    with WebServer(tmp_path, tls=trusted(tmp_path, monkeypatch) if tls else None) as server:
        store = opened(server, timeout=200)
        handle = store.open(b"/file")
        server.fail("stuck")
        cancel_on_the_way(partial(handle.read, 0, SIZE))
        assert bytes(handle.read(0, SIZE)) == content(SIZE)
        store.close()


def test_a_cancellation_that_comes_late_hurts_no_other_read(server: WebServer, handle: Handle) -> None:
    registered: list[Callable[[], None] | None] = []

    class Late(RecordingWatch):
        def on_cancel(self, close: Callable[[], None] | None) -> None:
            registered.append(close)

    assert bytes(handle.read(0, 1000, watch=Late())) == content(SIZE)[:1000]
    close, taken_back = registered
    assert close is not None
    assert taken_back is None
    close()
    assert bytes(handle.read(0, 1000)) == content(SIZE)[:1000]
    assert len({request.connection for request in server.seen}) == 1


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
