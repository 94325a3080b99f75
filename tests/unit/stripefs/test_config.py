"""Sources of a setting's value: flag > environment > file of the user > file of the host > default."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs import config
from stripefs.config import OPTIONS, by_name, resolve
from stripefs.errors import ConfigError
from stripefs.settings import MIB, Settings

WHAT_THE_COMMAND_LINE_NAMES = {"url", "mountpoint", "options"}
WHAT_IMAGES_NEED = {"mirrors", "proxy"}
DERIVED = {("store", "fetch_process")}


def write(file: Path, text: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


def refusal(**call: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve(**({"given": {}, "environ": {}} | call))
    return caught.value


def test_every_setting_has_an_option_and_every_option_a_setting() -> None:
    declared = {(option.section, option.attribute) for option in OPTIONS}
    settings = {
        (section, field)
        for section in Settings._fields
        for field in getattr(Settings(), section)._fields
        if field not in WHAT_THE_COMMAND_LINE_NAMES | WHAT_IMAGES_NEED
    }
    assert declared == settings - DERIVED


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_default_on_the_page_is_the_default_in_the_code(option: config.Option) -> None:
    assert option.parse(option.default) == getattr(getattr(Settings(), option.section), option.attribute)


def test_root_lets_others_in_and_a_plain_user_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert resolve({}, environ={}).mount.allow_other
    assert not resolve({"allow-other": ("false", "--allow-other")}, environ={}).mount.allow_other
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not resolve({}, environ={}).mount.allow_other


def test_each_source_beats_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = write(
        tmp_path / "etc.toml", 'version = 1\n[read]\nthreads = 1\nper-host = 1\nrange-size = "1MiB"\nmemory="64M"'
    )
    user = write(tmp_path / "user.toml", 'version = 1\n[read]\nthreads = 2\nper-host = 2\nrange_size = "2MiB"')
    monkeypatch.setattr(config, "config_files", lambda environ: [Path(host), Path(user)])
    environ = {"STRIPEFS_THREADS": "3", "STRIPEFS_PER_HOST": "3"}
    read = resolve({"threads": ("4", "--threads")}, environ=environ).read
    assert (read.threads, read.per_host, read.range_size, read.memory) == (4, 3, 2 * MIB, 64 * MIB)


def test_a_named_file_replaces_the_usual_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = config.config_files
    monkeypatch.setattr(config, "config_files", lambda environ: usual(environ)[1:])  # none of this host
    write(tmp_path / ".config/bootseer/stripefs.toml", "version = 1\n[read]\nthreads = 5")
    named = write(tmp_path / "named.toml", "version = 1\n[read]\nper-host = 7")
    environ = {"HOME": str(tmp_path)}
    assert resolve({}, environ=environ).read.threads == 5
    assert resolve({}, environ=environ, config=named).read.threads == Settings().read.threads
    assert resolve({}, environ=environ | {"STRIPEFS_CONFIG": named}).read.per_host == 7


def test_where_files_are_looked_for() -> None:
    host = "/etc/bootseer/stripefs.toml"
    assert config.config_files({"HOME": "/h"}) == [host, "/h/.config/bootseer/stripefs.toml"]
    assert config.config_files({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == [host, "/x/bootseer/stripefs.toml"]
    assert config.config_files({}) == [host]


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("[read]\nthreads = 1", "has no version", "version = 1"),
        ("version = true", "has version True", "version = 1"),
        ("version = 1\n[read]\nrnage-size = 1", "unknown key 'rnage-size' in [read]", "did you mean range-size?"),
        ("version = 1\n[mount]\nthreads = 1", "unknown key 'threads' in [mount]", "it belongs in [read]"),
        ("version = 1\nthreads = 1", "'threads' is no table of settings", "it belongs in [read]"),
        ("version = 1\n[raed]\nx = 1", "'raed' is no table of settings", "did you mean read?"),
        ("version = 1\nread = 3", "'read' is no table of settings", ""),
        ("version = 1\n[read]\nthreads = [1]", "threads must be text, a number, true or false", ""),
        ("version = 1\n[read]\nthreads = 0", "read.threads: 0 is outside 1 to 1024", ""),
        ("version = 1\n[read]\nthreads = true", "'true' is not a whole number", ""),
        ("version 1", "is not TOML", ""),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, what: str, hint: str) -> None:
    file = write(tmp_path / "bad.toml", text)
    error = refusal(config=file)
    assert file in error.message
    assert what in error.message
    assert hint in error.hint


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    assert "does not exist" in refusal(config=str(tmp_path / "none.toml")).message
    assert "cannot be read" in refusal(config=str(tmp_path)).message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory", "auto", 0),
        ("webhdfs-port", "auto", 0),
        ("uid", "owner", -1),
        ("umask", "022", 0o022),
        ("read-ahead", "1MiB", 1024),
        ("hedge", "no", False),
        ("attr-timeout", "0", 0.0),
        ("hdfs-transport", "WebHDFS", "webhdfs"),
        ("metrics", "[::1]:9464", "[::1]:9464"),
        ("metrics", "", ""),
        ("unit", "64MiB", 64 * MIB),
        ("layout-for", "", ()),
        ("layout-for", "*.pt=striped, a=b/*=plain,", (("*.pt", "striped"), ("a=b/*", "plain"))),
        ("trust-pool", "/a//.stripefs/, /b", ("/a/.stripefs", "/b")),
    ],
)
def test_values(name: str, text: str, value: object) -> None:
    option = by_name(name)
    assert option is not None
    assert option.parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory", "1MiB"),
        ("umask", "8"),
        ("io-timeout", "0"),
        ("umask", "1000"),
        ("hdfs-transport", "carrier-pigeon"),
        ("metrics", "0.0.0.0:9464"),
        ("metrics", "127.0.0.1:0"),
        ("hadoop-conf", "/no/such/folder"),
        ("log-file", "/no/such/folder/log"),
        ("log-file", "/"),
        ("layout-for", "=striped"),
        ("layout-for", "*.pt=raid5"),
        ("trust-pool", "pool"),
        ("trust-pool", "/a/../b"),
    ],
)
def test_a_bad_value_is_refused_where_it_was_given(name: str, text: str) -> None:
    option = by_name(name)
    assert option is not None
    flag = f"--{name}"
    assert refusal(given={name: (text, flag)}).message.startswith(f"{flag}: ")
    assert refusal(environ={option.variable: text}).message.startswith(f"{option.variable}: ")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"hadoop-conf": (".", "--hadoop-conf"), "log-file": ("log", "--log-file")}
    settings = resolve(given, environ={})
    assert settings.store.hadoop_conf == str(tmp_path)
    assert settings.mount.log_file == str(tmp_path / "log")


def test_a_variable_that_is_no_option_or_empty_is_left_alone() -> None:
    environ = {"STRIPEFS_SERVICE_HOST": "10.0.0.1", "STRIPEFS_THREADS": ""}
    assert resolve({}, environ=environ).read == Settings().read


@given(st.sampled_from(OPTIONS), st.text(max_size=20))
def test_any_text_is_a_value_or_a_clear_refusal(option: config.Option, text: str) -> None:
    try:
        option.parse(text)
        wrong = False
    except ConfigError:
        wrong = True
    if wrong:
        assert refusal(given={option.name: (text, "--x")}).message.startswith("--x: ")
    else:
        assert isinstance(resolve({option.name: (text, "--x")}, environ={}), Settings)
