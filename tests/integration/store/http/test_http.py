"""The http client against a real server on loopback that does as it should."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from stripefs.assembly import open_at
from stripefs.errors import (
    ConfigError,
    NotFound,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.fuse.store_worker import StoreBackend
from stripefs.settings import Settings, StoreSettings
from stripefs.store.base import Handle, Kind, Store
from stripefs.store.url import open_store
from tests.contract.reading import StoreConformance
from tests.integration.store.http.opening import SIZE
from tests.support.populate import LocalPopulate
from tests.support.stores import ODD_NAMES, Place, RecordingWatch, content
from tests.tools.web_server import WebServer


class TestHttp(StoreConformance):
    below_a_file = (NotFound,)  # names of a server know no directories: nothing is there
    odd_names = (*ODD_NAMES, b"new\nline", b"a:b", b"\xff\xfe", b"n" * 255)

    @pytest.fixture(scope="class", params=["strong", "weak", "none"])
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Place]:
        root = tmp_path_factory.mktemp("http")
        below = root / "with space & ü"
        below.mkdir()
        with WebServer(root) as server:
            server.etag = request.param
            store = open_store(StoreSettings(url=f"{server.url}/with%20space%20&%20%C3%BC/"))
            yield Place(store, LocalPopulate(below))
            store.close()


# Requests


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


def test_a_reader_that_checks_bytes_has_each_range_by_one_request(server: WebServer, store: Store) -> None:
    handle = store.open_checked(b"/file", SIZE)
    assert server.seen == []
    assert bytes(handle.read(10, 20)) == content(SIZE)[10:30]
    assert [request.method for request in server.seen] == ["GET"]
    handle.close()
    longer = store.open_checked(b"/file", SIZE + 1)
    with pytest.raises(StaleVersion):
        longer.read(10, 20)
    longer.close()


def test_a_proxy_that_is_named_takes_the_place_of_the_environment_s(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    url = "http://files.example/directory"
    store = open_store(StoreSettings(url=url, proxy=server.url))
    server.redirects[f"{url}/x"] = f"{server.url}/file"
    assert bytes(store.get(b"/x")) == content(SIZE)
    assert server.seen[0].path == f"{url}/x"
    store.close()
    with pytest.raises(ConfigError, match="the proxy socks9://me:\\*\\*\\*@h cannot be used"):
        open_store(StoreSettings(url=url, proxy="socks9://me:word@h"))


def test_the_status_of_a_file(store: Store, tmp_path: Path) -> None:
    status, found = store.stat(b"/file"), (tmp_path / "file").stat()
    assert (status.kind, status.length, status.mode) == (Kind.FILE, SIZE, 0o444)
    assert status.mtime_ns == int(found.st_mtime) * 1_000_000_000
    assert status.file_id.startswith('"')


def test_redirects_are_followed_each_time_if_they_lead_somewhere(
    server: WebServer, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "other").write_bytes(content(SIZE, 2))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(content(SIZE, 3))
    with WebServer(tmp_path / "elsewhere") as elsewhere:
        server.redirects = {"/link": "/other", "/away": f"{elsewhere.url}/file", "/circle": "/circle"}
        server.redirects["/ftp"] = "ftp://127.0.0.1/file"
        for path, seed in ((b"/link", 2), (b"/away", 3)):
            handle = store.open(path)
            assert bytes(handle.read(5, 1000)) == content(SIZE, seed)[5:1005]
            assert handle.status.name == path[1:]
            handle.close()
        assert elsewhere.seen[-1].headers["Range"] == "bytes=5-1004"
        for path in (b"/circle", b"/ftp"):
            with pytest.raises(StoreError) as failure:
                store.stat(path)
            assert not isinstance(failure.value, Transient)


# Versions


@pytest.mark.parametrize("etag", ["strong", "weak", "none"])
@pytest.mark.parametrize("conditions", [True, False])
def test_another_version_of_the_same_length_is_noticed(
    server: WebServer, store: Store, tmp_path: Path, etag: Literal["strong", "weak", "none"], conditions: bool
) -> None:
    server.etag, server.conditions = etag, conditions
    handle = store.open(b"/file")
    LocalPopulate(tmp_path).write(b"/file", content(SIZE, 2))
    if etag == "none":
        os.utime(tmp_path / "file", (1, 1))  # a date of HTTP is a whole second
    with pytest.raises(StaleVersion):
        handle.read(0, 1000)
    with pytest.raises(StaleVersion):
        handle.read(0, SIZE)


def test_an_answer_that_names_no_version(server: WebServer, store: Store) -> None:
    server.etag_in_ranges = False
    handle = store.open(b"/file")
    assert bytes(handle.read(0, 1000)) == content(SIZE)[:1000]  # the server was asked for this version
    server.etag = "none"
    handle = store.open(b"/file")
    with pytest.raises(StoreError, match="which version"):
        handle.read(0, 1000)


def test_a_server_that_knows_no_versions(server: WebServer, store: Store, tmp_path: Path) -> None:
    server.etag, server.dated = "none", False
    handle = store.open(b"/file")
    assert (handle.status.file_id, handle.status.mtime_ns) == ("", 0)
    assert bytes(handle.read(0, 1000)) == content(SIZE)[:1000]
    LocalPopulate(tmp_path).append(b"/file", b"more")
    with pytest.raises(StaleVersion):
        handle.read(0, 1000)


# Directories


async def test_what_lists_nothing_is_not_mounted(server: WebServer) -> None:
    backend = object.__new__(StoreBackend)
    backend._settings = Settings(store=StoreSettings(url=server.url))
    with pytest.raises(Unsupported, match="cannot be mounted"):
        await backend._connect()
    assert server.seen == []


def test_a_probe_takes_the_url_for_that_of_a_file(server: WebServer) -> None:
    store, path = open_at(StoreSettings(url=f"{server.url}/file"))
    assert (path, store.stat(path).length) == (b"/file", SIZE)
    store.close()
