"""Clients of a daemon: what they announce, start and wait for, and what they tell of the one that they have found."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from imagefs.config import IMAGEFS
from imagefs.daemon import announcement
from imagefs.daemon import client as module
from imagefs.daemon.client import Client, NoDaemon
from imagefs.daemon.launcher import daemon_job
from imagefs.daemon.protocol import AttachRequest, Recording
from imagefs.daemon.requests import Unserved
from imagefs.daemon.worker import DaemonBackend
from imagefs.settings import DaemonSettings
from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings

URL = "http://store/images"


async def test_dependency_snapshots_tell_once_of_options_that_are_not_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DaemonBackend, "_need_cache", AsyncMock())
    running = DaemonSettings(cache_size=1 << 30)
    backend = DaemonBackend(SimpleNamespace(payload=running.to_json()))  # type: ignore[arg-type]
    backend._host = Mock(use=AsyncMock(return_value=Unserved("missing")))
    answer = await backend._use(AttachRequest("1", StoreSettings(), "deps/n"))
    monkeypatch.setattr(Client, "_ask", lambda *_, **__: answer)
    client = Client(DaemonSettings(cache_size=1 << 20), {"cache_size": "cache-size"})
    for _ in range(2):
        assert client.attach_layer(StoreSettings(url="/s"), "n" * 64, Recording(), timeout=1.0) is None
    assert [one.getMessage() for one in caplog.records if "not in force" in one.getMessage()] == [
        "--cache-size is not in force: the daemon that runs has 1 GiB; imagefs daemon --stop ends it"
    ]


class Outage:
    """A clock that sleeping moves, and a daemon that answers from the second `back` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, back: float) -> None:
        self.now, self.back = 1000.0, 1000.0 + back
        monkeypatch.setattr(module, "ask", self.ask)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, path: str, request: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        if self.now < self.back:
            raise FileNotFoundError(path)
        return {"v": 1}


def test_all_requests_of_an_outage_wait_for_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, back=60.0)
    client = Client(DaemonSettings(), starts=False, waits=10.0)
    for _ in range(5):
        with pytest.raises(NoDaemon, match="no imagefs daemon runs"):
            client.status()
    assert outage.now == pytest.approx(1010.0, abs=0.1)
    outage.now = outage.back
    client.status()
    outage.back = outage.now + 9.0  # the next outage has its own end
    assert client.status() == {"v": 1}
    outage.back, began = outage.now + 1.0, outage.now
    with pytest.raises(NoDaemon):
        Client(DaemonSettings(), starts=False).status()
    assert outage.now == began, "it waits for none"


@pytest.mark.parametrize(("package", "extra"), [("pyfuse3", "mount"), ("lz4", "images")])
def test_a_package_that_the_worker_lacks_is_named_before_it_is_started(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(ConfigError, match=rf"{package} is not installed .*bootseer\[{extra}\]"):
        daemon_job(DaemonSettings(cache=str(tmp_path / "cache"), runtime=str(tmp_path / "runtime")))
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ConfigError, match="needs a little-endian machine"):
        daemon_job(DaemonSettings())


# -- announcements ---------------------------------------------------------------------------------------------------


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "imagefs.sock"))
        made.listen()
        made.setblocking(False)
        yield made


def heard(listener: socket.socket) -> dict[str, Any]:
    """The announcement that came, {} for none."""
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return {}
    with connection:
        found: dict[str, Any] = json.loads(connection.recv(1 << 16))
        return found


def test_a_command_announces_its_image(listener: socket.socket, tmp_path: Path) -> None:
    environ = {"IMAGEFS_RUNTIME": str(tmp_path), "HOME": str(tmp_path)}
    announcement.announce(["--rw", f"{URL}#t", "--", "curl", "http://else#t"], environ)
    told = heard(listener)
    assert (told["op"], told["image"], told["plain"]) == ("announce", f"{URL}#t", True)
    assert announcement.take() == told["id"]
    assert announcement.take() == "", "for one attachment"


def test_the_options_of_a_store_are_all_known() -> None:
    """The module is loaded before the table of options can be."""
    assert {*announcement.STORE_OPTIONS} == {one.name for one in IMAGEFS.all if one.section == "store"} | {"config"}


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (["--mirror=http://mirror"], {}),
        (["--host-timeout", "1s"], {}),
        (["--no-use-datanode-hostname"], {}),
        ([], {"IMAGEFS_HDFS_USER": "me"}),
        ([], {"IMAGEFS_CONFIG": "file"}),
        ([], {"XDG_CONFIG_HOME": "CONFIG"}),
    ],
    ids=repr,
)
def test_a_store_that_is_reached_in_a_way_of_its_own_is_announced_as_such(
    listener: socket.socket, tmp_path: Path, flags: list[str], environ: dict[str, str]
) -> None:
    (own,) = [file for file in IMAGEFS.files({"XDG_CONFIG_HOME": str(tmp_path)}) if str(tmp_path) in file]
    Path(own).parent.mkdir()
    Path(own).touch()
    given = {name: value.replace("CONFIG", str(tmp_path)) for name, value in environ.items()}
    announcement.announce([*flags, f"{URL}#t"], {"IMAGEFS_RUNTIME": str(tmp_path), "HOME": "/nowhere", **given})
    assert heard(listener)["plain"] is False
    announcement.take()


@pytest.mark.parametrize(
    "words",
    [[], ["/srv/images#t", "true"], ["--mirror=http://mirror"], ["--", f"{URL}#t"], [f'{URL}#"t'], [f"{URL}\\#t"],
     [f"{URL}#t\n"], [f"{URL}#ü"]],
    ids=repr,
)  # fmt: skip
def test_what_needs_no_time_or_is_no_plain_word_is_not_announced(
    listener: socket.socket, tmp_path: Path, words: list[str]
) -> None:
    announcement.announce(words, {"IMAGEFS_RUNTIME": str(tmp_path)})
    assert heard(listener) == {}
    assert announcement.take() == ""


def test_a_daemon_that_takes_no_connections_is_not_waited_for(listener: socket.socket, tmp_path: Path) -> None:
    listener.listen(0)
    for _ in range(5):
        announcement.announce([f"{URL}#t"], {"IMAGEFS_RUNTIME": str(tmp_path)})
    assert heard(listener)["op"] == "announce"
    announcement.take()
    for folder in (tmp_path / "none", tmp_path / ("x" * 200)):
        announcement.announce([f"{URL}#t"], {"IMAGEFS_RUNTIME": str(folder)})
        assert announcement.take() == ""
