"""Hosts that start containers of one job at once: one installs, the others wait for what that publishes."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from tests.integration.deps.container.job import SEEN, Job, project, sources
from tests.integration.deps.sharing import SETTINGS
from tests.support.deps.installed import snapshots_in
from tests.support.images.faults import kill_supervisor
from tests.support.start_events import events_in
from tests.tools.imagefs_daemon import PATIENCE, Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

_HOSTS = 3
_WITHIN = PATIENCE * 4  # seconds: a lease and its takeover, and pip, on two processors

_HOLDING = """
    import os, time
    with open(".git/begun", "a") as file: file.write("x")
    while os.path.exists(".git/hold"): time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_leader_whose_host_dies(image: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With its daemon, in the middle of an installation. When it is there again it has what the others published, and
    nothing of what it had begun."""
    git = project(tmp_path / "project", _HOLDING.strip()) / ".git"  # no part of the key
    git.mkdir()
    (git / "hold").touch()
    with contextlib.ExitStack() as stack:
        hosts = []
        for _ in range(_HOSTS):
            service = stack.enter_context(contextlib.closing(Service(tmp_path_factory.mktemp("host"), **SETTINGS)))
            service.environment |= {"BOOTSEER_EVENTS": str(tmp_path / "events"), "BOOTSEER_RUN": "r7"}
            hosts.append(Job(service, image, tmp_path))
        hosts[0].wants(*sources(tmp_path / "project"))
        # With an epoch, as a resolver would run the project's program too.
        starts = [host.service.start(*host.words("--deps-epoch", "1")) for host in hosts]
        eventually((git / "begun").exists, "an installer")
        # The others' containers, which look at the image for the key, end by themselves.
        eventually(lambda: sum(bool(host.uppers()) for host in hosts) == 1, "one host alone to write")
        (number,) = (number for number, host in enumerate(hosts) if host.uppers())
        leader, start = hosts[number], starts.pop(number)
        kill_supervisor(leader.service)
        start.kill()
        start.communicate()
        (git / "hold").unlink()
        ended = [process.communicate(timeout=_WITHIN) for process in starts]
        assert [out for out, _ in ended] == [SEEN] * (_HOSTS - 1), ended
        told = "".join(errors for _, errors in ended)
        assert f"waiting for what another host installs ({socket.gethostname()}:{start.pid} since 2" in told
        assert told.count("above the image") == _HOSTS - 2
        assert (git / "begun").read_text() == "xx"
        (name,) = snapshots_in(leader.store).stored()
        waits = [one for one in events_in(tmp_path / "events") if one.get("kind") == "wait"]
        assert [one["event"] for one in waits] == ["begin"] * (_HOSTS - 1) + ["end"] * (_HOSTS - 1)
        assert all(one["facts"].items() >= {"cause": "lease", "key": name}.items() for one in waits[: _HOSTS - 1])
        assert leader.run("--deps-epoch", "1") == SEEN
        assert "hit" in leader.told
        for one in hosts:
            one.nothing_is_left()
