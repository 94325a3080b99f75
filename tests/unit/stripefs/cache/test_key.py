from __future__ import annotations

from dataclasses import replace

import pytest

from stripefs.cache import segment_format as keys
from stripefs.store.base import Identity

NOW = 1_800_000_000_000_000_000
VERSION = Identity(5 << 20, 1_700_000_000_000_000_000, "16387")


def key_of(url: str, path: bytes, identity: Identity, *, now: int = NOW, trust_mtime: bool = False) -> bytes | None:
    return keys.key_of(url, path, identity, now, trust_mtime=trust_mtime)


def test_a_renamed_file_and_a_mount_of_another_directory_have_the_same_key() -> None:
    key = key_of("hdfs://nn:8020/checkpoints", b"/a", VERSION)
    assert key is not None
    assert len(key) == 16
    assert key == key_of("hdfs://nn:8020/checkpoints", b"/b", VERSION)
    assert key == key_of("hdfs://NN:8020/", b"/checkpoints/a", VERSION)
    assert key == key_of("hdfs://someone:***@nn:8020/", b"/checkpoints/a", VERSION)
    assert key_of("/data", b"/a", VERSION) == key_of("file:///data", b"/a", VERSION)


def test_another_version_and_the_same_id_at_another_service_have_another_key() -> None:
    changes = ({}, {"length": 1}, {"mtime_ns": 1}, {"file_id": "16388"})
    urls = ("hdfs://nn1/", "hdfs://nn2/", "file:///", "throttled+hdfs://nn1/", "https://nn1/")
    assert len({key_of("hdfs://nn/", b"/a", replace(VERSION, **change)) for change in changes}) == 4
    assert len({key_of(url, b"/a", VERSION) for url in urls}) == len(urls)


@pytest.mark.parametrize("scheme", ["https", "http", "s3", "gs"])
def test_where_ids_may_repeat_the_path_counts(scheme: str) -> None:
    """Two files of one length that were changed at once may have one ETag."""
    url = f"{scheme}://bucket/prefix"
    keys = {
        key_of(url, b"/a", VERSION),
        key_of(url, b"/b", VERSION),
        key_of(f"{scheme}://bucket/other", b"/a", VERSION),
        key_of(f"{url}?endpoint-override=elsewhere", b"/a", VERSION),
    }
    assert len(keys) == 4
    assert None not in keys


def test_without_ids_nothing_has_a_key_unless_times_are_trusted() -> None:
    without = Identity(VERSION.length, VERSION.mtime_ns, "")
    assert key_of("hdfs://nn/", b"/a", without) is None
    trusted = {key_of("hdfs://nn/", path, without, trust_mtime=True) for path in (b"/a", b"/b")}
    assert len(trusted) == 2
    assert None not in trusted
    assert key_of("hdfs://nn/", b"/a", Identity(5, 0, ""), trust_mtime=True) is None
    assert key_of("no url://", b"/a", VERSION) is None


def test_a_local_file_that_was_just_changed_has_no_key_yet() -> None:
    """It may change again within the same tick of its time stamps."""
    for url in ("/data", "file:///data", "counting+file:///data"):
        assert key_of(url, b"/a", VERSION, now=VERSION.mtime_ns + 1_000_000) is None
        assert key_of(url, b"/a", VERSION, now=VERSION.mtime_ns - 1_000_000) is None
        assert key_of(url, b"/a", VERSION, now=VERSION.mtime_ns + 10_000_000_000) is not None
    assert key_of("hdfs://nn/", b"/a", VERSION, now=VERSION.mtime_ns) is not None
