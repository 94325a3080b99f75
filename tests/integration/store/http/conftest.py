"""A server with one file, and the store that it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.store.base import Handle, Store
from tests.integration.store.http.opening import SIZE, opened
from tests.support.stores import content
from tests.tools.web_server import WebServer


@pytest.fixture(autouse=True, scope="module")
def nothing_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither proxies nor certificates nor passwords of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("NETRC", str(tmp_path_factory.getbasetemp() / "no-netrc"))
        yield


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "file").write_bytes(content(SIZE))
    with WebServer(tmp_path) as server:
        yield server


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
