"""Checkpoint directories of pods, by the manifests that people copy, in namespaces as kubelet makes them.

A volume is a directory of the node that is a shared mount. A container has a mount namespace of its own, in which the
volume is the node's own mount (Bidirectional) or a slave of it (HostToContainer), and PIDs of the node or of the pod.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes_manifests import MANIFESTS, containers, pod_spec
from tests.support.mount_namespace import unshared
from tests.support.waiting import PATIENCE, child_of, eventually
from tests.support.written_mounts import hidden

pytestmark = [pytest.mark.mount, pytest.mark.root]

_PREPARE = """mount -t tmpfs tmpfs /mnt && mkdir /mnt/volume /mnt/bootseer &&
mount --bind /mnt/volume /mnt/volume && mount --make-rshared /mnt/volume && echo ready"""

_PROPAGATION = {"Bidirectional": "rshared", "HostToContainer": "rslave"}

_JOB = """
import json, os, sys
def write(path, data):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(file, data.encode())
    os.close(file)
def read(path):
    with open(path) as file:
        return file.read()
def mounted():
    with open("/proc/self/mountinfo") as table:
        return sum(" /mnt/bootseer/" in line and " fuse.stripefs " in line for line in table)
for line in sys.stdin:
    try:
        answer = [0, eval(line)]
    except OSError as error:
        answer = [error.errno, None]
    print(json.dumps(answer), flush=True)
"""


class Container:
    """A process in the namespaces of a container of `pod`, which `process.pid` or its child `pid` is."""

    def __init__(self, pod: Pod, spec: dict[str, Any], *command: str) -> None:
        (volume,) = spec["volumeMounts"]
        at, propagation = volume["mountPath"], _PROPAGATION[volume["mountPropagation"]]
        prepare = f"mount -t tmpfs tmpfs /run && mount --rbind /mnt/volume {at} && mount --make-{propagation} {at}"
        enter = ["nsenter", "--target", str(pod.first), "--mount", *(["--pid"] if pod.shares_pids else [])]
        apart = ["unshare", "--mount", "--propagation", "unchanged"]
        environment = {one["name"]: one["value"] for one in spec.get("env", [])}
        self.log = pod.folder / f"log{len(pod.running)}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*enter, *apart, "sh", "-c", f'{prepare} && exec "$@"', "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if command[0] == sys.executable else log,
                stderr=log,
                text=True,
                env=os.environ
                | {name: value for name, value in environment.items() if name != "STRIPEFS_HDFS_USER"}
                | {"SOURCE": f"file://{pod.source}", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            )
        pod.running.append(self)
        self.pid = child_of(self.process.pid) if pod.shares_pids else self.process.pid
        self._spec = spec

    def wait_started(self) -> Container:
        """Return when the container's own startup probe is content."""
        probe = self._spec["startupProbe"]["exec"]["command"]
        inside = ["nsenter", "--target", str(self.pid), "--mount", "--pid"]
        here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

        def answers() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return not subprocess.run([*inside, *probe], env=here, capture_output=True).returncode

        eventually(answers, "the startup probe")
        return self

    def ask(self, expression: str) -> tuple[int, Any]:
        """The errno and the value of an expression that the job evaluates."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        code, value = json.loads(self.process.stdout.readline())
        return int(code), value

    def stop(self) -> None:
        """End it as kubelet does."""
        os.kill(self.pid, signal.SIGTERM)
        self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End all its processes at once, as kubelet does when its time is over, and the kernel for memory."""
        for pid in [self.pid, *_descendants(self.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


def _descendants(pid: int) -> Iterator[int]:
    for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(word)
        yield from _descendants(int(word))


class Pod:
    """A node with one volume, and containers on it, which share a PID namespace of their own or have the node's.

    first: a process in the node's mount namespace and in the PID namespace of the containers.
    """

    def __init__(self, folder: Path, *, shares_pids: bool) -> None:
        self.folder, self.shares_pids, self.source = folder, shares_pids, folder / "source"
        self.source.mkdir()
        self.running: list[Container] = []
        self._holders = [self._hold(*unshared(folder, "sleep", "infinity", prepare=_PREPARE))]
        self.first = self._holders[0].pid
        if shares_pids:
            enter = ("nsenter", "--target", str(self.first), "--mount")
            pause = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "unchanged")
            self._holders.append(self._hold(*enter, *pause, "sh", "-c", "echo ready; exec sleep infinity"))
            self.first = child_of(self._holders[1].pid)

    @staticmethod
    def _hold(*command: str) -> subprocess.Popen[str]:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        return holder

    def mounter(self, spec: dict[str, Any]) -> Container:
        return Container(self, spec, *spec["command"], *spec["args"])

    def job(self, spec: dict[str, Any]) -> Container:
        return Container(self, spec, sys.executable, "-c", _JOB)

    def close(self) -> None:
        for container in reversed(self.running):
            if container.process.poll() is None:
                container.kill()
            for pipe in (container.process.stdin, container.process.stdout):
                if pipe is not None:
                    pipe.close()
        for holder in reversed(self._holders):
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    """Pods of a test, which end with it."""
    made: list[Pod] = []
    yield made
    for pod in made:
        pod.close()


CHECKPOINTS = "/mnt/bootseer/checkpoints"


@pytest.mark.parametrize(
    ("recipe", "kind", "sees"),
    [("stripefs-node.yaml", "DaemonSet", "hostPID"), ("stripefs-sidecar.yaml", "Pod", "shareProcessNamespace")],
)
def test_a_job_writes_checkpoints_and_sees_the_mount_that_follows_one_that_ended(
    recipe: str, kind: str, sees: str, tmp_path: Path, pods: list[Pod]
) -> None:
    """The mount sees its writers, so what they close is published, whether or not they called fsync."""
    document = MANIFESTS[f"{recipe}/{kind}"]
    assert pod_spec(document)[sees] is True
    mounting, using = containers(document)[0], containers(MANIFESTS[f"{recipe}/Pod"])[-1]
    pods.append(pod := Pod(tmp_path, shares_pids=kind == "Pod"))
    (pod.source / "old").write_text("old")
    first = pod.mounter(mounting).wait_started()
    job = pod.job(using)
    assert job.ask(f"read('{CHECKPOINTS}/old')") == (0, "old")
    assert job.ask(f"write('{CHECKPOINTS}/old', 'new')") == (0, None)
    assert (pod.source / "old").read_text() == "new"

    eventually(lambda: not hidden(pod.source), "the end of the writing")
    first.kill()
    assert job.ask(f"read('{CHECKPOINTS}/old')")[0] == errno.ENOTCONN
    second = pod.mounter(mounting).wait_started()
    assert job.ask(f"read('{CHECKPOINTS}/old')") == (0, "new")
    assert job.ask("mounted()") == (0, 1)  # the dead one is gone here as well
    assert job.ask(f"write('{CHECKPOINTS}/more', 'x')") == (0, None)
    assert (pod.source / "more").read_text() == "x"

    second.stop()
    assert second.process.returncode == 0
    assert job.ask("mounted()") == (0, 0)
    assert hidden(pod.source) == []
