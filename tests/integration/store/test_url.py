from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings, redact
from stripefs.store.local import LocalStore
from stripefs.store.url import open_store
from stripefs.testing import CountingStore, ThrottledStore
from tests.support.stores import listing


def opened(url: str) -> object:
    return open_store(StoreSettings(url=url))


def test_ways_to_name_a_directory(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    opened(f"file://{tmp_path}/%FF")
    opened(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    (tmp_path / "a b%20?x").mkdir()
    (tmp_path / "a b%20?x" / "here").touch()
    for url in (
        f"{tmp_path}/a b%20?x",
        f"{tmp_path}/a b%20?x/",
        f"file://{tmp_path}/a%20b%2520%3Fx",
        f"file://localhost{tmp_path}/a%20b%2520%3fx",
    ):
        store = open_store(StoreSettings(url=url))
        assert [status.name for status in listing(store, b"/")] == [b"here"]
        store.close()


def test_wrappers_nest_from_left_to_right(tmp_path: Path) -> None:
    store = opened(f"counting+Throttled+FILE://{tmp_path}?hosts=3&rate=5MB/s&block-size=1MiB&replication=2")
    assert isinstance(store, CountingStore)
    assert isinstance(store.inner, ThrottledStore)
    assert isinstance(store.inner.inner, LocalStore)
    assert [host.name for host in store.hosts()] == ["h0", "h1", "h2"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "absolute path"),
        ("ftp://host/x", "hdfs://"),
        ("file:///data?rate=1", "knows none"),
        ("file://host/data", "file:///"),
        ("spinning+file:///data", "throttled"),
        ("counting+counting+file:///", "once"),
        ("throttled+file:///?throttled.speed=1", "throttled knows"),
        ("throttled+file:///?rate=fast", "rate"),
        ("throttled+file:///?hosts=2&replication=3", "replication"),
        ("throttled+file:///?hosts=2&hosts=3", "twice"),
        ("throttled+file:///?hosts=2&throttled.hosts=3", "twice"),
        ("throttled+file:///?hosts", "NAME=VALUE"),
        ("faulty+throttled+file:///?rate=0.5", "faulty.rate or throttled.rate"),
        ("s3://bucket/x?speed=1", "endpoint-override"),
        ("s3://key:secret@bucket/x", "AWS_ACCESS_KEY_ID"),
        ("s3:///x", "bucket"),
        ("http:///file", "http://HOST/PATH"),
        ("https://me@host/file", "netrc"),
        ("http://host:port/file", "not a URL"),
        ("https://host/file?token=secret", "knows none"),
    ],
)
def test_urls_that_mean_nothing(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as failure:
        opened(url)
    assert says in str(failure.value)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/a:b@c", "/data/a:b@c"),
        ("hdfs://user@nn:8020/a", "hdfs://user@nn:8020/a"),
        ("s3://key:pass@bucket/x", "s3://key:***@bucket/x"),
        ("https://me:pass@host:8443/x", "https://me:***@host:8443/x"),
        ("s3://key:pa/ss@wo@bucket/x", "s3://key:***@bucket/x"),
        ("s3://b/x?secret-key=abc&region=eu", "s3://b/x?secret-key=***&region=eu"),
        ("s3://b/x?region=eu&Session_TOKEN=abc", "s3://b/x?region=eu&Session_TOKEN=***"),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(("url", "loaded"), [("file:///", "[]"), ("counting+file:///", "['stripefs.testing']")])
def test_a_store_loads_no_library_of_others(url: str, loaded: str) -> None:
    program = (
        "import sys; from stripefs.store.url import open_store; from stripefs.settings import StoreSettings;"
        f"open_store(StoreSettings(url={url!r}));"
        "names = ('pyarrow', 'hdfs_native', 'numpy', 'trio', 'http', 'httpx', 'stripefs.testing');"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == loaded
