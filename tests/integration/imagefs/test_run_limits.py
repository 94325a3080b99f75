"""A container's resources are bounded by its cgroup, and a limit that cannot be enforced is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.mount_namespace import unshared
from tests.tools.containers import fill
from tests.tools.imagefs_daemon import Service, built

pytestmark = [pytest.mark.mount, pytest.mark.root]

COMMAND = (sys.executable, "-P", "-c", "import sys; from imagefs.cli.main import run; sys.exit(run())")

LIMITS = ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max", "pids.max")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    fill(root)
    path = tmp_path_factory.mktemp("store")
    built(root, path, "small", {"config": {"Env": ["PATH=/bin"], "Cmd": ["true"]}})
    return path


def test_limits_are_in_force(host: Service, store: Path) -> None:
    """The cgroup has the limits while the container runs; then it runs into one of them."""
    parent = f"/imagefs-limits-{os.getpid()}"
    limits = ("--memory", "64MiB", "--cpus", "0.5", "--pids-limit", "12", "--cgroup-parent", parent)
    script = "echo begun; read line; while sleep 1000 & do :; done"
    try:
        process = host.start("run", *limits, f"{store}#small", "--", "sh", "-c", script, stdin=-1)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        entries = [entry for group in cgroups(parent) for entry in group.glob("imagefs-*/*")]
        found = {entry.name: entry.read_text().split() for entry in entries if entry.name in LIMITS}
        held = {entry.parent for entry in entries if entry.name == "cgroup.procs" and entry.read_text()}
        _, errors = process.communicate("go on\n", timeout=60)
        assert found.get("memory.limit_in_bytes", found.get("memory.max")) == [str(64 << 20)]
        assert found.get("cpu.cfs_quota_us", found.get("cpu.max", [""]))[0] == "50000"
        assert found["pids.max"] == ["12"]
        assert held >= {entry.parent for entry in entries if entry.name in LIMITS}
        assert process.returncode == 2, errors
        assert "can't fork" in errors
    finally:
        for group in cgroups(parent):
            group.rmdir()


def test_a_limit_that_cannot_be_kept_is_said_in_one_line(host: Service, store: Path) -> None:
    done = without_controller("memory", host, "run", "--memory", "64MiB", f"{store}#small")
    assert (done.returncode, done.stderr) == (
        125,
        "imagefs: --memory cannot be kept: the cgroups of this machine have no controller memory; "
        "mount it below /sys/fs/cgroup, or leave the limit out\n",
    )
    assert host.status()["images"] == []


def without_controller(name: str, host: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`imagefs ARGUMENTS` where that controller is not mounted."""
    mounts = [one for one in kernel.mounts() if one.fstype == "cgroup2" or name in one.super_options.split(",")]
    hide = " && ".join(f"umount -l {one.path}" for one in reversed(mounts))
    return subprocess.run(
        unshared(host.folder, *COMMAND, *arguments, prepare=hide),
        env=host.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def cgroups(parent: str) -> list[Path]:
    """The cgroup of this name in every hierarchy that has it."""
    tops = [mount.path for mount in kernel.mounts() if mount.fstype in ("cgroup", "cgroup2")]
    return [Path(top + parent) for top in tops if Path(top + parent).is_dir()]
