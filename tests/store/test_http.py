"""The http client against a real server on loopback that does as it should, and as it should not."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stripefs.cli.probing import open_at
from stripefs.errors import (
    Abandoned,
    ConfigError,
    HostFailed,
    IsADirectory,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.mount.worker import StoreBackend
from stripefs.settings import Settings, StoreSettings
from stripefs.store.base import Handle, Kind, Store
from stripefs.store.url import open_store
from tests.store.conformance import ODD_NAMES, Place, RecordingWatch, StoreConformance, content
from tests.store.places import LocalPopulate
from tests.store.web_server import Fault, WebServer

SIZE = 100_000


@pytest.fixture(autouse=True, scope="module")
def nothing_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither proxies nor passwords of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        patch.setenv("NETRC", str(tmp_path_factory.getbasetemp() / "no-netrc"))
        yield


class Http(StoreConformance):
    below_a_file = (NotFound,)  # names of a server know no directories: nothing is there
    odd_names = (*ODD_NAMES, b"new\nline", b"a:b", b"\xff\xfe", b"n" * 255)
    etag: Literal["strong", "weak", "none"]

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        root = tmp_path_factory.mktemp("http")
        below = root / "with space & ü"
        below.mkdir()
        with WebServer(root) as server:
            server.etag = cls.etag
            store = open_store(StoreSettings(url=f"{server.url}/with%20space%20&%20%C3%BC/"))
            yield Place(store, LocalPopulate(below))
            store.close()


class TestStrongTags(Http):
    etag = "strong"


class TestWeakTags(Http):
    etag = "weak"


class TestDates(Http):
    etag = "none"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "file").write_bytes(content(SIZE))
    with WebServer(tmp_path) as server:
        yield server


def opened(server: WebServer, timeout: float = 5.0) -> Store:
    return open_store(StoreSettings(url=server.url, host_timeout=timeout))


@pytest.fixture
def store(server: WebServer) -> Iterator[Store]:
    store = opened(server)
    yield store
    store.close()


@pytest.fixture
def handle(store: Store) -> Iterator[Handle]:
    handle = store.open(b"/file")
    yield handle
    handle.close()


# What is asked


def test_each_call_is_one_request(server: WebServer, store: Store) -> None:
    handle = store.open(b"/file", store.stat(b"/file").identity)
    assert bytes(handle.read(10, 20)) == content(SIZE)[10:30]
    assert bytes(handle.read(0, 0)) == b""
    handle.close()
    assert [request.method for request in server.seen] == ["HEAD", "HEAD", "GET"]
    headers = server.seen[-1].headers
    assert (headers["Range"], headers["If-Range"]) == ("bytes=10-29", handle.status.file_id)
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("stripefs/")


def test_one_connection_serves_one_thread(server: WebServer, handle: Handle) -> None:
    for start in range(0, SIZE, 10_000):
        assert bytes(handle.read(start, 10_000)) == content(SIZE)[start : start + 10_000]
    assert len({request.connection for request in server.seen}) == 1


def test_as_many_reads_at_once_as_there_are_threads(server: WebServer, handle: Handle) -> None:
    barrier = threading.Barrier(32)

    class Together(RecordingWatch):
        """Every thread is in the middle of its read before any of them goes on."""

        def progress(self, received: int) -> None:
            if not self.received:
                barrier.wait(30)
            super().progress(received)

    with ThreadPoolExecutor(32) as pool:
        reads = list(pool.map(lambda start: bytes(handle.read(start, 1000, watch=Together())), range(32)))
    assert reads == [content(SIZE)[start : start + 1000] for start in range(32)]
    connections = len({request.connection for request in server.seen})
    reads = [bytes(handle.read(start, 1000)) for start in range(32)]
    assert len({request.connection for request in server.seen}) == connections >= 32


def test_the_status_of_a_file(store: Store, tmp_path: Path) -> None:
    status, found = store.stat(b"/file"), (tmp_path / "file").stat()
    assert (status.kind, status.length, status.mode) == (Kind.FILE, SIZE, 0o444)
    assert status.mtime_ns == int(found.st_mtime) * 1_000_000_000
    assert status.file_id.startswith('"')


def test_redirects_are_followed_each_time(server: WebServer, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content(SIZE, 2))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(content(SIZE, 3))
    with WebServer(tmp_path / "elsewhere") as elsewhere:
        server.redirects = {"/link": "/other", "/away": f"{elsewhere.url}/file"}
        store = opened(server)
        for path, seed in ((b"/link", 2), (b"/away", 3)):
            handle = store.open(path)
            assert bytes(handle.read(5, 1000)) == content(SIZE, seed)[5:1005]
            assert handle.status.name == path[1:]
            handle.close()
        assert elsewhere.seen[-1].headers["Range"] == "bytes=5-1004"
        store.close()


def test_redirects_that_lead_nowhere(server: WebServer, store: Store) -> None:
    server.redirects = {"/circle": "/circle", "/ftp": "ftp://127.0.0.1/file"}
    for path in (b"/circle", b"/ftp"):
        with pytest.raises(StoreError) as failure:
            store.stat(path)
        assert not isinstance(failure.value, Transient)


# Versions


@pytest.mark.parametrize("etag", ["strong", "weak", "none"])
@pytest.mark.parametrize("conditions", [True, False])
def test_another_version_of_the_same_length_is_noticed(
    server: WebServer, tmp_path: Path, etag: Literal["strong", "weak", "none"], conditions: bool
) -> None:
    server.etag, server.conditions = etag, conditions
    store = opened(server)
    handle = store.open(b"/file")
    LocalPopulate(tmp_path).write(b"/file", content(SIZE, 2))
    if etag == "none":
        os.utime(tmp_path / "file", (1, 1))  # a date of HTTP is a whole second
    with pytest.raises(StaleVersion):
        handle.read(0, 1000)
    with pytest.raises(StaleVersion):
        handle.read(0, SIZE)
    store.close()


def test_a_file_that_became_shorter_than_the_range(server: WebServer, tmp_path: Path) -> None:
    server.conditions = False
    store = opened(server)
    handle = store.open(b"/file")
    LocalPopulate(tmp_path).truncate(b"/file", 10)
    with pytest.raises(StaleVersion):
        handle.read(50_000, 1000)
    store.close()


def test_an_answer_that_names_no_version(server: WebServer) -> None:
    server.etag_in_ranges = False
    store = opened(server)
    handle = store.open(b"/file")
    assert bytes(handle.read(0, 1000)) == content(SIZE)[:1000]  # the server was asked for this version
    server.etag = "none"
    handle = store.open(b"/file")
    with pytest.raises(StoreError, match="which version"):
        handle.read(0, 1000)
    store.close()


def test_a_server_that_knows_no_versions(server: WebServer, tmp_path: Path) -> None:
    server.etag, server.dated = "none", False
    store = opened(server)
    handle = store.open(b"/file")
    assert (handle.status.file_id, handle.status.mtime_ns) == ("", 0)
    assert bytes(handle.read(0, 1000)) == content(SIZE)[:1000]
    LocalPopulate(tmp_path).append(b"/file", b"more")
    with pytest.raises(StaleVersion):
        handle.read(0, 1000)
    store.close()


# What goes wrong


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
        ("503", ServiceDown),
        ("404", NotFound),
        ("401", PermissionDenied),
        ("403", PermissionDenied),
        ("418", StoreError),
    ],
)
def test_a_status_that_fails(server: WebServer, store: Store, fault: Fault, kind: type[StoreError]) -> None:
    server.fail(fault, method="HEAD")
    with pytest.raises(StoreError, match="/file") as failure:
        store.stat(b"/file")
    assert type(failure.value) is kind


def test_a_status_over_a_connection_that_breaks(server: WebServer, store: Store) -> None:
    server.fail("reset", times=2, method="HEAD")
    with pytest.raises(ServiceDown):
        store.stat(b"/file")


def test_an_answer_of_unannounced_length(server: WebServer, handle: Handle) -> None:
    server.fail("chunked")
    assert bytes(handle.read(5, 50_000)) == content(SIZE)[5:50_005]
    server.lengths = False
    assert bytes(handle.read(5, 50_000)) == content(SIZE)[5:50_005]


def test_the_whole_file_is_taken_where_it_was_wanted(server: WebServer, handle: Handle) -> None:
    server.fail("whole")
    assert bytes(handle.read(0, SIZE)) == content(SIZE)


def test_a_file_of_unknown_length(server: WebServer, store: Store) -> None:
    server.lengths = False
    with pytest.raises(Unsupported, match="length"):
        store.open(b"/file")


def test_a_file_that_comes_only_encoded(server: WebServer, store: Store) -> None:
    server.fail("encoded", method="HEAD")
    with pytest.raises(Unsupported, match="gzip"):
        store.stat(b"/file")


def test_nobody_listens() -> None:
    store = open_store(StoreSettings(url="http://127.0.0.1:9/file"))
    with pytest.raises(ServiceDown, match="refused"):
        store.stat(b"/x")
    store.close()


# Directories


def test_a_path_that_the_server_redirects_to_itself_with_a_slash(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert store.stat(b"/a b").kind is Kind.DIRECTORY
    with pytest.raises(IsADirectory):
        store.open(b"/a b")


async def test_what_lists_nothing_is_not_mounted(server: WebServer) -> None:
    backend = object.__new__(StoreBackend)
    backend._settings = Settings(store=StoreSettings(url=server.url))
    with pytest.raises(Unsupported, match="cannot be mounted"):
        await backend._check_source()
    assert server.seen == []


def test_a_probe_takes_the_url_for_that_of_a_file(server: WebServer) -> None:
    store, path = open_at(StoreSettings(url=f"{server.url}/file"))
    assert (path, store.stat(path).length) == (b"/file", SIZE)
    store.close()


def test_nothing_can_be_written(store: Store) -> None:
    with pytest.raises(Unsupported):
        store.put(b"/new", [b"x"])
    with pytest.raises(Unsupported):
        store.remove(b"/file")


# Giving up


@pytest.mark.parametrize("tls", [False, True])
def test_a_stuck_read_ends_when_it_is_cancelled(
    server: WebServer, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tls:
        context = trusted(tmp_path, monkeypatch)
        with WebServer(tmp_path, tls=context) as safe:
            cancel_a_stuck_read(safe)
    else:
        cancel_a_stuck_read(server)


def cancel_a_stuck_read(server: WebServer) -> None:
    store = opened(server, timeout=200)
    handle = store.open(b"/file")
    server.fail("stuck")
    watch = RecordingWatch()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(handle.read, 0, SIZE, watch=watch)
        assert watch.registered.wait(30)
        assert watch.close is not None
        watch.cancelled = True
        watch.close()
        with pytest.raises(Abandoned):
            read.result(30)
    assert watch.close is None
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


def test_a_closed_store(server: WebServer) -> None:
    store = opened(server)
    handle = store.open(b"/file")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        handle.read(0, 1)
    with pytest.raises(StoreError, match="closed"):
        store.stat(b"/file")


# Passwords and certificates


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


def trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a server on loopback needs for TLS; its certificate is trusted as long as the test runs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate").write_bytes(certificate.public_bytes(pem))
    (folder / "key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "certificate"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    return context


# URLs


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http:///file", "http://HOST/PATH"),
        ("https://me@host/file", "netrc"),
        ("http://host:port/file", "not a URL"),
        ("https://host/file?token=secret", "knows none"),
    ],
)
def test_urls_that_mean_nothing(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as failure:
        open_store(StoreSettings(url=url))
    assert says in str(failure.value)
    assert "secret" not in str(failure.value)


def test_a_wrapped_store(server: WebServer) -> None:
    store = open_store(StoreSettings(url=f"counting+{server.url}"))
    handle = store.open(b"/file")
    assert bytes(handle.read(0, 10)) == content(SIZE)[:10]
    assert not store.capabilities.listing
    handle.close()
    store.close()


def test_nothing_is_said_at_exit(server: WebServer) -> None:
    program = (
        "import sys; from stripefs.store.url import open_store; from stripefs.settings import StoreSettings;"
        "handle = open_store(StoreSettings(url=sys.argv[1])).open(b'/file'); print(len(handle.read(0, 10)))"
    )
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::ResourceWarning", "-c", program, server.url]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert (done.stdout, done.stderr) == ("10\n", "")
