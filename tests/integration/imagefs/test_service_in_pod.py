"""The services in one container of a pod, by the script and the probe that people copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes_manifests import MANIFESTS, containers
from tests.support.mount_namespace import unshared
from tests.support.waiting import PATIENCE, child_of, eventually, gone

pytestmark = [pytest.mark.mount, pytest.mark.root]

(CONTAINER,) = containers(MANIFESTS["imagefs-in-pod.yaml/DaemonSet"])
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
_PREPARE = "for folder in /run /var/cache /var/lib; do mount -t tmpfs tmpfs $folder; done"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The container's process, whose folders end with it."""
    command = unshared(tmp_path, *CONTAINER["command"], *CONTAINER["args"], prepare=_PREPARE)
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command],
            env=ENVIRONMENT,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the script ends its process group, which is the container's
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def test_both_services_answer_and_come_back_and_end_with_the_container(pod: subprocess.Popen[bytes]) -> None:
    inside = ["nsenter", "--target", str(child_of(pod.pid)), "--mount", "--pid"]

    def answers() -> bool:
        probe = CONTAINER["startupProbe"]["exec"]["command"]
        return not subprocess.run([*inside, *probe], env=ENVIRONMENT, capture_output=True).returncode

    eventually(answers, "the startup probe")
    services = list(_services(child_of(pod.pid)))
    assert len(services) == 2
    for pid in services:
        os.kill(pid, signal.SIGTERM)
        eventually(lambda pid=pid: gone(pid), "the end of a service")  # type: ignore[misc]
    eventually(answers, "the services that follow")
    os.kill(child_of(pod.pid), signal.SIGTERM)
    pod.wait(PATIENCE)


def _services(shell: int) -> Iterator[int]:
    """The processes that the loops of the container's shell have started."""
    for loop in Path(f"/proc/{shell}/task/{shell}/children").read_text().split():
        for pid in Path(f"/proc/{loop}/task/{loop}/children").read_text().split():
            if b"imagefs" in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield int(pid)
