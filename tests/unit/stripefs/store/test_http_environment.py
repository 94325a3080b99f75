"""The environment of a store of a web server before it asks anything: proxies and certificates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings
from stripefs.store.url import open_store, prepare
from tests.integration.store.http.conftest import nothing_from_outside

__all__ = ["nothing_from_outside"]

URLS = ("http://127.0.0.1:1/", "https://127.0.0.1:1/")


def refused(url: str) -> str:
    """The error of opening the store; loading its client ahead raises one, too."""
    with pytest.raises(ConfigError):
        prepare(url.partition("://")[0])
    with pytest.raises(ConfigError) as failure:
        open_store(StoreSettings(url=url))
    return str(failure.value)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("proxy", ["ftp://proxy:1", "http://[::1", "http://proxy:port", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_the_users_to_mend(
    proxy: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It means nothing, or its client is not installed."""
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", proxy)
    assert ("socksio" if proxy.startswith("socks5") else "proxy") in refused(url)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("kind", ["missing", "folder", "garbage"])
def test_certificates_that_cannot_be_read(kind: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage").write_bytes(b"\0garbage\n" * 100)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / kind))
    assert str(tmp_path / kind) in refused(url)
    monkeypatch.delenv("SSL_CERT_FILE")
    open_store(StoreSettings(url=url)).close()  # a refusal is not remembered
