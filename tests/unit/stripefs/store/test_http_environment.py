"""The environment of a store of a web server before it asks anything: proxies and certificates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings
from stripefs.store.url import open_store, prepare

URLS = ("http://127.0.0.1:1/", "https://127.0.0.1:1/")


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def refused(url: str) -> str:
    """The error of opening the store; loading its client ahead raises one, too."""
    with pytest.raises(ConfigError):
        prepare(url.partition("://")[0])
    with pytest.raises(ConfigError) as failure:
        open_store(StoreSettings(url=url))
    return str(failure.value)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("proxy", ["ftp://proxy:1", "http://[::1", "http://proxy:port"])
def test_a_proxy_that_means_nothing_is_the_users_to_mend(proxy: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    assert "proxy" in refused(url)


@pytest.mark.parametrize("url", URLS)
def test_a_proxy_whose_client_is_not_installed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    assert "socksio" in refused(url)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("kind", ["missing", "folder", "garbage"])
def test_certificates_that_cannot_be_read(kind: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage").write_bytes(b"\0garbage\n" * 100)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / kind))
    assert str(tmp_path / kind) in refused(url)
    monkeypatch.delenv("SSL_CERT_FILE")
    open_store(StoreSettings(url=url)).close()  # a refusal is not remembered
