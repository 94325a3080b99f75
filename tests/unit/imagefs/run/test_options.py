"""The config of an image: its user, its signal, and damage to it."""

from __future__ import annotations

import signal

import pytest

from imagefs.errors import RunError
from imagefs.run.options import ImageConfig, User, parse_signal, resolve_user
from tests.unit.imagefs.run.users import GROUP, PASSWD


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("", User(0, 0, [], "/root")),
        ("ann", User(1000, 100, [29, 44], "/home/ann")),
        ("1000", User(1000, 100, [29, 44], "/home/ann")),
        ("ann:users", User(1000, 100, [], "/home/ann")),
        ("ann:9", User(1000, 9, [], "/home/ann")),
        ("ann:12345", User(1000, 12345, [], "/home/ann")),
        ("ann:", User(1000, 100, [29, 44], "/home/ann")),
        ("4242", User(4242, 0, [], "/")),
        ("4242:video", User(4242, 44, [], "/")),
        (":video", User(0, 44, [], "/root")),
        ("1001", User(55, 56, [], "/home/digits")),
        ("last", User(4294967294, 1, [], "/")),
    ],
)
def test_users(wanted: str, expected: User) -> None:
    assert resolve_user(wanted, PASSWD, GROUP) == expected


@pytest.mark.parametrize("wanted", ["bob", "short", "bad", "too", "ann:nobody", "-1", "4294967295", "1e3", "²", "+nis"])
def test_users_that_are_not_listed(wanted: str) -> None:
    with pytest.raises(RunError, match="the image has no"):
        resolve_user(wanted, PASSWD, GROUP)


def test_an_image_without_users() -> None:
    assert resolve_user("", b"", b"") == User(0, 0, [], "/")
    assert resolve_user("12:13", b"\xff\0", b"\xff:::") == User(12, 13, [], "/")


def test_image_configs() -> None:
    config = {
        "Env": ["A=1"],
        "Entrypoint": ["e"],
        "Cmd": None,
        "WorkingDir": "/w",
        "User": "u",
        "StopSignal": "SIGQUIT",
        "Volumes": {"/data/": {}, "relative": {}, "/": {}, "/../up": {}},
        "Labels": {"x": "y"},
    }
    assert ImageConfig.parse({"config": config, "architecture": "amd64"}) == ImageConfig(
        env=["A=1"],
        entrypoint=["e"],
        workdir="/w",
        user="u",
        stop_signal="SIGQUIT",
        volumes=["/data", "/relative", "/up"],
        cmd=[],
    )
    assert ImageConfig.parse({}) == ImageConfig.parse({"config": None}) == ImageConfig([], [], [], volumes=[])


@pytest.mark.parametrize(
    "config",
    [7, ["Env"], {"Env": "A=1"}, {"Cmd": [1]}, {"User": 0.5}, {"Volumes": ["/data"]}, {"WorkingDir": {"a": 1}}],
)
def test_image_configs_that_are_damaged(config: object) -> None:
    with pytest.raises(RunError, match="the image's"):
        ImageConfig.parse({"config": config})


def test_signals() -> None:
    assert parse_signal("SIGTERM") == parse_signal("TERM") == parse_signal("15") == signal.SIGTERM
    assert parse_signal("SIGRTMIN+3") == parse_signal("RTMIN+3") == signal.SIGRTMIN + 3
    assert parse_signal("SIGRTMAX-1") == signal.SIGRTMAX - 1
    for text in ("", "0", "99", "SIGNOTHING", "sigterm", "SIG_DFL", "SIG", "RTMAX+1", "9" * 30, "_IGN"):
        with pytest.raises(RunError, match="no signal"):
            parse_signal(text)
