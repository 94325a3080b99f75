"""The config of an image, its user and its signal; limits, and whether this machine's cgroups can enforce them."""

from __future__ import annotations

import signal

import pytest

from imagefs.errors import RunError
from imagefs.run import host
from imagefs.run.options import ImageConfig, ResourceLimits, User, parse_cgroup, parse_signal, resolve_user
from stripefs.errors import ConfigError
from stripefs.fuse import kernel
from stripefs.fuse.kernel import MountPoint

PASSWD = b"""# a comment
root:x:0:0:root:/root:/bin/bash
ann:x:1000:100:Ann,,,:/home/ann:/bin/sh
short:x:7
+nis::::::
bad:x:number:1:::
1001:x:55:56:a name of digits:/home/digits:/bin/sh
last:x:4294967294:1::/:
too:x:4294967295:1::/:
"""
GROUP = b"root:x:0:\nusers:x:100:bob\nvideo:x:44:bob,ann\naudio:x:29:ann\nempty:x:9\n"
"""The users and groups of an image, with lines that are damaged."""


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
    assert resolve_user(wanted, b"\xff\0\n" + PASSWD, b"\xff:::\n" + GROUP) == expected, "other bytes than text"


@pytest.mark.parametrize("wanted", ["bob", "short", "bad", "too", "ann:nobody", "-1", "4294967295", "1e3", "²", "+nis"])
def test_users_that_are_not_listed(wanted: str) -> None:
    with pytest.raises(RunError, match="the image has no"):
        resolve_user(wanted, PASSWD, GROUP)


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


# Limits


TOP = MountPoint("/sys/fs/cgroup", "0:20", "tmpfs", "tmpfs", "rw", "rw,mode=755")


def hierarchy(controllers: str, version: str = "cgroup") -> MountPoint:
    return MountPoint(f"/sys/fs/cgroup/{controllers}", "0:21", version, "cgroup", "rw", f"rw,{controllers}")


# Flags


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ResourceLimits()),
        ({"memory": "64MiB"}, ResourceLimits(memory=64 << 20)),
        ({"memory": "1.5g"}, ResourceLimits(memory=3 << 29)),
        ({"cpus": "1.5"}, ResourceLimits(cpus=1.5)),
        ({"cpus": "0.01"}, ResourceLimits(cpus=0.01)),
        ({"processes": "100"}, ResourceLimits(processes=100)),
        ({"memory": "0", "cpus": "0", "processes": "0"}, ResourceLimits()),
    ],
)
def test_limits(given: dict[str, str], expected: ResourceLimits) -> None:
    assert ResourceLimits.parse(**given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": "much"}, "--memory: 'much' is not a size such as 8MiB, 512M or 1GB"),
        ({"memory": "1"}, "--memory: 1 is outside 6 MiB to 1024 TiB"),
        ({"cpus": "nan"}, "--cpus: 'nan' is not a number of processors such as 2 or 1.5"),
        ({"cpus": "inf"}, "--cpus: inf is outside 0.01 to 8192"),
        ({"cpus": "0.001"}, "--cpus: 0.001 is outside 0.01 to 8192"),
        ({"processes": "many"}, "--pids-limit: 'many' is not a whole number"),
        ({"processes": "-1"}, "--pids-limit: -1 is outside 0 to 4194304"),
    ],
)
def test_limits_that_cannot_be(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ResourceLimits.parse(**given)
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", "/"), ("/", "/"), ("job7", "/job7"), ("/batch//job7/", "/batch/job7"), ("./batch", "/batch")],
)
def test_where_the_cgroup_is_made(given: str, expected: str) -> None:
    assert parse_cgroup(given) == expected


@pytest.mark.parametrize("given", ["..", "/batch/../..", "a\0b"])
def test_a_place_that_is_no_cgroup(given: str) -> None:
    with pytest.raises(ConfigError, match="is no path of a cgroup"):
        parse_cgroup(given)


# Controllers


def test_controllers_of_version_2(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_TOP", str(tmp_path))
    top = TOP._replace(path=str(tmp_path), fstype="cgroup2")
    with pytest.raises(RunError, match=r"cgroup\.controllers: No such file"):
        host.controllers([top])
    with open(f"{tmp_path}/cgroup.controllers", "w", encoding="ascii") as file:
        file.write("cpuset cpu memory\n")
    assert host.controllers([top]) == {"cpuset", "cpu", "memory"}


def test_a_limit_that_nothing_enforces_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [TOP, hierarchy("cpu,cpuacct"), hierarchy("memory", version="cgroup2")]
    monkeypatch.setattr(kernel, "mounts", lambda: table)
    host.check_limits(ResourceLimits())
    host.check_limits(ResourceLimits(cpus=1))
    for limits, flag, name in (
        (ResourceLimits(memory=1 << 30, cpus=1), "--memory", "memory"),
        (ResourceLimits(processes=9), "--pids-limit", "pids"),
    ):
        with pytest.raises(RunError) as raised:
            host.check_limits(limits)
        assert raised.value.message == f"{flag} cannot be kept: the cgroups of this machine have no controller {name}"
