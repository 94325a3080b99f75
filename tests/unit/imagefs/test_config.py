"""Sources of imagefs' settings; the machinery itself is tested with stripefs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from imagefs.config import IMAGEFS, DepsSettings, resolve
from imagefs.settings import (
    Compression,
    DaemonSettings,
    LayerLimits,
    SnapshotterSettings,
    default_cache,
    default_runtime,
)
from stripefs.config import OPTIONS as STRIPEFS_OPTIONS
from stripefs.errors import ConfigError
from stripefs.options import Option, Options
from stripefs.settings import StoreSettings

PARTS = {
    "store": StoreSettings,
    "daemon": DaemonSettings,
    "build": LayerLimits,
    "deps": DepsSettings,
    "snapshotter": SnapshotterSettings,
    "services": DaemonSettings,
}


def part_of(option: Option) -> Any:
    return Compression if option.attribute in Compression._fields else PARTS[option.section]


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Options, "files", lambda *_: [])


def test_every_setting_has_an_option_and_every_option_a_setting() -> None:
    settings = {(part, field) for part in (*PARTS.values(), Compression) for field in part._fields}
    declared = {(part_of(option), option.attribute) for option in IMAGEFS.all}
    made = {
        (StoreSettings, "url"),
        (StoreSettings, "proxy"),
        (StoreSettings, "fetch_process"),
        (DaemonSettings, "compression"),
    }
    assert declared - {(LayerLimits, "tmp")} == settings - made


@pytest.mark.parametrize("option", IMAGEFS.all, ids=lambda option: option.name)
def test_the_default_on_the_page_is_the_default_in_the_code(option: Option) -> None:
    if option.name in ("cache", "runtime", "tmp", "socket"):
        assert option.parse(option.default) == ""
    else:
        assert option.parse(option.default) == getattr(part_of(option)(), option.attribute)


def test_the_store_is_reached_as_stripefs_reaches_it() -> None:
    names = [option.name for option in STRIPEFS_OPTIONS if option.section == "store"]
    assert [option.name for option in IMAGEFS.all if option.section == "store"] == [*names, "mirror"]
    assert {option.variable for option in IMAGEFS.all if option.section == "store"} >= {"IMAGEFS_HDFS_USER"}


def test_compression_goes_with_the_settings_of_the_daemon() -> None:
    settings = resolve({"compression": ("zstd", "--compression")}, environ={"IMAGEFS_LINK_RATE": "20MB/s"})
    assert settings.daemon.compression == Compression("zstd", 20_000_000)
    assert DaemonSettings.from_json(settings.daemon.to_json()) == settings.daemon
    newer = json.loads(settings.daemon.to_json()) | {"colour": "red"}
    assert DaemonSettings.from_json(json.dumps(newer)) == settings.daemon, "a worker of an older version takes them"
    with pytest.raises(ConfigError, match="'gzip' is none of auto, lz4, zstd"):
        resolve({"compression": ("gzip", "--compression")}, environ={})


MIRRORS = """
version = 1
[store]
mirror = "http://any"
host-timeout = "2s"
[store."hdfs://nn/images"]
mirror = ["http://one:8080/images/", "https://two/x"]
[store."hdfs://nn/images/team"]
mirror = []
[store."oci://registry.example"]
mirror = ["proxy+http://127.0.0.1:4001", "http://cache"]
[store."s3://bucket/images?region=here"]
mirror = ["http://three"]
"""


@pytest.mark.parametrize(
    ("url", "mirrors"),
    [
        ("hdfs://nn/images", ("http://one:8080/images", "https://two/x")),
        ("hdfs://nn/images/", ("http://one:8080/images", "https://two/x")),
        ("hdfs://nn/images/a/b", ("http://one:8080/images/a/b", "https://two/x/a/b")),
        ("hdfs://nn/images/team/a", ()),
        ("hdfs://nn/imagesque", ("http://any",)),
        ("s3://bucket/images?region=there", ("http://three",)),
        ("oci://registry.example/team/app", ("proxy+http://127.0.0.1:4001", "http://cache")),
        ("oci://registry.example.org/team/app", ("http://any",)),
        ("/srv/images", ("http://any",)),
    ],
)
def test_each_store_has_its_mirrors(tmp_path: Path, url: str, mirrors: tuple[str, ...]) -> None:
    """Those of the longest place at or above it; what one serves of that place it serves of places below."""
    file = tmp_path / "imagefs.toml"
    file.write_text(MIRRORS)
    assert resolve({}, url=url, config=str(file), environ={}).store.mirrors == mirrors
    settings = resolve({}, config=str(file), environ={})
    assert settings.store_at(url) == StoreSettings(url=url, host_timeout=2.0, mirrors=mirrors)
    given = {"mirror": ("http://a,http://b", "--mirror")}
    assert resolve(given, url=url, config=str(file), environ={}).store.mirrors == ("http://a", "http://b")
    environ = {"IMAGEFS_MIRROR": "http://c"}
    assert resolve({}, url=url, config=str(file), environ=environ).store_at("/x").mirrors == ("http://c",)


@pytest.mark.parametrize(
    ("text", "url", "what"),
    [
        ('mirror = ["cache:8080"]', "/x", "'cache:8080' is no mirror"),
        ('mirror = "ftp://cache"', "/x", "'ftp://cache' is no mirror"),
        ('mirror = "proxy+http://h/path"', "/x", "is no mirror"),
        ('mirror = "http://h/x?user=1"', "/x", "is no mirror"),
        ('mirror = "ftp://me:word@h"', "/x", r"'ftp://me:\*\*\*@h' is no mirror"),
        ("mirror = [1]", "/x", "must be text"),
        ('mirror = "proxy+http://h"', "hdfs://nn/images", "not fetched by HTTP, so no proxy"),
        ('[store."/x"]\nhost-timeout = "1s"', "/x", 'store."/x".host-timeout cannot be set'),
        ('[store."/x"]\nmirror = "cache"', "/x", 'store."/x".mirror: .cache. is no mirror'),
        ('[store."/x"]\nmiror = "http://h"', "/x", "miror cannot be set"),
    ],
)
def test_mirrors_that_cannot_be(tmp_path: Path, text: str, url: str, what: str) -> None:
    file = tmp_path / "imagefs.toml"
    file.write_text(f"version = 1\n[store]\n{text}")
    with pytest.raises(ConfigError, match=what):
        resolve({}, url=url, config=str(file), environ={})


def test_where_files_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert IMAGEFS.files({"HOME": "/h"}) == [
        "/etc/bootseer/imagefs.toml",
        "/h/.config/bootseer/imagefs.toml",
    ]


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    settings = resolve({}, environ={})
    assert settings.daemon.cache == "/var/cache/bootseer/imagefs"
    assert settings.tmp == "/var/cache/bootseer/imagefs/build"
    assert settings.daemon.socket == "/run/bootseer/imagefs.sock"
    assert settings.daemon.devices == "/run/bootseer/imagefs/devices"
    settings = resolve({"cache": (str(tmp_path / "new"), "--cache"), "tmp": ("", "--tmp")}, environ={})
    assert settings.tmp == str(tmp_path / "new/build")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_cache({"HOME": "/h"}) == "/h/.cache/bootseer/imagefs"
    assert default_cache({"HOME": "/h", "XDG_CACHE_HOME": "/c"}) == "/c/bootseer/imagefs"
    assert default_runtime({"XDG_RUNTIME_DIR": "/run/user/1000"}) == "/run/user/1000/bootseer"
    assert default_runtime({}) == "/tmp/bootseer-1000"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("background-rate", "fast"),
        ("background-rate", "2000000TiB/s"),
        ("cache", "/etc/passwd"),
        ("cache-size", "1MiB"),
        ("fetches", "0"),
        ("max-path", "5000"),
    ],
)
def test_a_bad_value_is_refused_where_it_was_given(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{name}: "):
        resolve({name: (text, f"--{name}")}, environ={})
