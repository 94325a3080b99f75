"""Containers run by the command from images of a store, by a real runtime."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from stripefs.mount import kernel
from tests.imagefs.containers import fill
from tests.imagefs.service import Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

SETTINGS = {"background_rate": "0"}

CONFIG = {"config": {"Env": ["PATH=/bin", "COLOUR=blue"], "Cmd": ["sh", "-c", "echo hello from $COLOUR"]}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    fill(root)
    (root / "large").write_bytes(os.urandom(1 << 20) * 8)
    path = tmp_path_factory.mktemp("store")
    built(root, path, "small", CONFIG)
    return path


@pytest.mark.parametrize("plane", ["erofs", "tree"])
def test_a_container_from_nothing(host: Service, store: Path, plane: str) -> None:
    assert host.ok("run", "--plane", plane, f"{store}#small") == "hello from blue\n"
    done = host.run("run", "--plane", plane, "--rw", f"{store}#small", "--", "sh", "-c", "echo x > /new; exit 7")
    assert done.returncode == 7, done.stderr
    assert host.status()["images"] == []


def test_a_worker_that_dies_does_not_end_a_container(host: Service, store: Path) -> None:
    script = "echo begun; read line; cat /large | md5sum; exit 3"
    process = host.start("run", f"{store}#small", "--", "sh", "-c", script, stdin=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    host.kill_worker()
    out, err = process.communicate("go on\n", timeout=60)
    assert process.returncode == 3, err
    assert out.endswith("  -\n")
    assert host.status()["images"] == []


def test_a_job_says_that_it_has_started(service: Service, store: Path) -> None:
    process = service.start("run", f"{store}#small", "--", "sh", "-c", "touch $IMAGEFS_READY; read line", stdin=-1)
    eventually(service.answers, "the daemon")
    image = eventually(lambda: [one for one in service.status()["images"] if one["ready"]], "the job to be ready")[0]
    assert image["start"]["ended_by"] == "marker"
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    eventually(lambda: "plan_traces" in service.log(), "the trace")


@pytest.mark.parametrize("runtime", ["crun", "runc"])
@pytest.mark.parametrize("write", ["read-only", "--rw"])
def test_where_a_job_says_it_nothing_can_be_kept_and_nothing_executed(
    host: Service, store: Path, runtime: str, write: str
) -> None:
    script = (
        "cd /run/imagefs; busybox grep -c ' /run/imagefs tmpfs rw,nosuid,nodev,noexec,' /proc/self/mounts;"
        "busybox dd if=/dev/zero of=left bs=4k count=1000 2>/dev/null || busybox wc -c <left; rm left;"
        "i=0; while touch n$i 2>/dev/null && [ $i -lt 50 ]; do i=$((i+1)); done; [ $i -lt 16 ] && echo few; rm n*;"
        "echo '#!/bin/busybox id' >left; chmod 4755 left; ./left 2>/dev/null || echo refused; read line"
    )
    rw = ["--rw"] if write == "--rw" else []
    command = ["run", *rw, "--memory", "16MiB", "--oci-runtime", runtime, f"{store}#small", "--", "sh", "-c", script]
    process = host.start(*command, stdin=-1)
    assert process.stdout is not None
    said = ""
    while not said.endswith("refused\n"):
        line = process.stdout.readline()
        assert line, process.communicate(timeout=60)[1]
        said += line
    assert said == "1\n16384\nfew\nrefused\n"
    found = [Path(folder, name) for folder, _, names in os.walk(host.settings.runtime) for name in names]
    assert [path for path in found if path.name == "left"] == []
    assert stat.S_IMODE(os.stat(host.settings.runtime).st_mode) == 0o700
    process.communicate("\n", timeout=60)


def test_a_run_that_is_killed_leaves_nothing(host: Service, store: Path) -> None:
    process = host.start("run", "--rw", f"{store}#small", "--", "sh", "-c", "echo begun; sleep 1000")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    eventually(lambda: host.status()["images"] == [], "the image to be let go")
    assert [one.path for one in kernel.mounts() if Path(one.path).is_relative_to(host.folder)] == [
        host.settings.devices
    ]
    host.ok("run", f"{store}#small")  # which sweeps away what the other left
    assert os.listdir(Path(host.settings.runtime, "imagefs/runs")) == [".lock"]
