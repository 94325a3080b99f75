"""Hosts that start containers of one job at once: one installs, the others wait for what that publishes, whatever
becomes of it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.deps.container.job import SEEN, Job, project, sources
from tests.integration.deps.sharing import SETTINGS, visit
from tests.support.deps.installed import snapshots_in
from tests.support.images.faults import kill_supervisor
from tests.support.start_events import events_in
from tests.tools.imagefs_daemon import PATIENCE, Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

EPOCH = ("--deps-epoch", "1")

_HOSTS = 3
_WITHIN = PATIENCE * 4  # seconds: a lease and its takeover, and pip, on two processors

_HOLDING = """
    import os, time
    with open(".git/begun", "a") as file: file.write("x")
    while os.path.exists(".git/hold"): time.sleep(0.05)
"""


class Fleet:
    """Starts of one job on all hosts, each with a daemon and a cache of its own.

    The first installer waits in the middle of its installation until `go_on`.
    """

    def __init__(self, hosts: Sequence[Job], folder: Path) -> None:
        # The content of .git is no part of the key.
        self._told = project(folder / "project", _HOLDING.strip()) / ".git"
        self._told.mkdir()
        (self._told / "hold").touch()
        hosts[0].wants(*sources(folder / "project"))
        self.hosts = list(hosts)
        # A resolver would run the project's program too.
        self._starts = [host.service.start(*host.words(*EPOCH)) for host in hosts]

    def leader(self) -> tuple[Job, subprocess.Popen[str]]:
        """The host that installs, and its start, which belong to the fleet no more."""
        eventually(lambda: self.installed() == 1, "an installer")
        # The others' containers, which look at the image for the key, end by themselves.
        eventually(lambda: sum(bool(host.uppers()) for host in self.hosts) == 1, "one host alone to write")
        (number,) = (number for number, host in enumerate(self.hosts) if host.uppers())
        return self.hosts.pop(number), self._starts.pop(number)

    def installed(self) -> int:
        """The number of hosts that have begun to install."""
        begun = self._told / "begun"
        return len(begun.read_text()) if begun.exists() else 0

    def go_on(self) -> None:
        (self._told / "hold").unlink()

    def told(self) -> str:
        """Standard error of all hosts, once every job has run."""
        ended = [process.communicate(timeout=_WITHIN) for process in self._starts]
        assert [out for out, _ in ended] == [SEEN] * len(ended), ended
        return "".join(errors for _, errors in ended)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    with contextlib.ExitStack() as stack:
        made = [Service(tmp_path_factory.mktemp("host"), **SETTINGS) for _ in range(_HOSTS)]
        yield [stack.enter_context(contextlib.closing(service)) for service in made]


@pytest.fixture
def fleet(image: str, services: list[Service], tmp_path: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        guests = [stack.enter_context(visit(service, tmp_path)) for service in services]
        for guest in guests:
            guest.environment |= {"BOOTSEER_EVENTS": str(tmp_path / "events"), "BOOTSEER_RUN": "r7"}
        yield Fleet([Job(guest, image, tmp_path) for guest in guests], tmp_path)


@pytest.mark.slow
def test_a_leader_whose_host_dies(fleet: Fleet, tmp_path: Path) -> None:
    """With its daemon. When it is there again it has what the others published, and nothing of what it had begun."""
    host, start = fleet.leader()
    kill_supervisor(host.service)
    start.kill()
    start.communicate()
    fleet.go_on()
    told = fleet.told()
    assert f"waiting for what another host installs ({socket.gethostname()}:{start.pid} since 2" in told
    assert told.count("above the image") == _HOSTS - 2
    assert fleet.installed() == 2
    (name,) = snapshots_in(host.store).stored()
    waits = [one for one in events_in(tmp_path / "events") if one.get("kind") == "wait"]
    assert [one["event"] for one in waits] == ["begin"] * (_HOSTS - 1) + ["end"] * (_HOSTS - 1)
    assert all(one["facts"].items() >= {"cause": "lease", "key": name}.items() for one in waits[: _HOSTS - 1])
    assert host.run(*EPOCH) == SEEN
    assert "hit" in host.told
    for one in (*fleet.hosts, host):
        one.nothing_is_left()
