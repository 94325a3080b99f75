"""Containers run by the command from images of a store, by a real runtime."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.integration.imagefs.conftest import next_line, programs
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

SETTINGS = {"background_rate": "0"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    said = {"Env": ["PATH=/bin", "COLOUR=blue"], "Cmd": ["sh", "-c", "echo hello from $COLOUR"]}
    return programs(tmp_path_factory.mktemp("image"), 8 << 20, **said)


@pytest.mark.parametrize("plane", ["erofs", "tree"])
def test_a_container_from_nothing(host: Service, store: Path, plane: str) -> None:
    assert host.ok("run", "--plane", plane, f"{store}#small") == "hello from blue\n"
    done = host.run("run", "--plane", plane, "--rw", f"{store}#small", "--", "sh", "-c", "echo x > /new; exit 7")
    assert done.returncode == 7, done.stderr
    assert host.status()["images"] == []


@pytest.mark.parametrize(("runtime", "options"), [("crun", []), ("runc", ["--rw"])])
def test_where_a_job_says_it_nothing_can_be_kept_and_nothing_executed(
    host: Service, store: Path, runtime: str, options: list[str]
) -> None:
    script = (
        "cd /run/imagefs; busybox grep -c ' /run/imagefs tmpfs rw,nosuid,nodev,noexec,' /proc/self/mounts;"
        "busybox dd if=/dev/zero of=left bs=4k count=1000 2>/dev/null || busybox wc -c <left; rm left;"
        "i=0; while touch n$i 2>/dev/null && [ $i -lt 50 ]; do i=$((i+1)); done; [ $i -lt 16 ] && echo few; rm n*;"
        "echo '#!/bin/busybox id' >left; chmod 4755 left; ./left 2>/dev/null || echo refused; read line"
    )
    own = ("run", *options, "--memory=16MiB", f"--oci-runtime={runtime}", f"{store}#small")
    process = host.start(*own, "--", "sh", "-c", script, stdin=-1)
    said = ""
    while not said.endswith("refused\n"):
        said += next_line(process)
    assert said == "1\n16384\nfew\nrefused\n"
    found = [Path(folder, name) for folder, _, names in os.walk(host.settings.runtime) for name in names]
    assert [path for path in found if path.name == "left"] == []
    assert stat.S_IMODE(os.stat(host.settings.runtime).st_mode) == 0o700
    process.communicate("\n", timeout=60)


def test_what_a_runtime_says_is_told_once(host: Service, store: Path) -> None:
    done = host.run("run", f"{store}#small", "--", "nothing")
    assert done.returncode == 127
    assert done.stderr.count("nothing") == 1
    assert len(done.stderr.splitlines()) == 1


def test_settings_that_the_daemon_does_not_have_are_told(host: Service, store: Path) -> None:
    done = host.run("run", "--cache-size", "70MiB", "--read-ahead=2MiB", f"{store}#small")
    assert (done.returncode, done.stdout) == (0, "hello from blue\n")
    assert "--cache-size is not in force: the daemon that runs has half of what was free" in done.stderr
    assert "--read-ahead is not in force: the daemon that runs has 1024 KiB" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert host.run("run", f"{store}#small").stderr == ""


def test_a_cache_that_is_removed_is_made_anew(host: Service, store: Path) -> None:
    script = "echo begun; read line; busybox md5sum /large"
    process = host.start("run", f"{store}#small", "--", "sh", "-c", script, stdin=-1)
    assert next_line(process) == "begun\n"
    shutil.rmtree(host.settings.cache)
    assert host.ok("run", f"{store}#small") == "hello from blue\n"
    assert host.ok("run", f"{store}#small") == "hello from blue\n"
    out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out == host.ok("run", f"{store}#small", "--", "sh", "-c", "busybox md5sum /large")
    assert Path(host.settings.cache, "blocks").is_dir()


def test_a_user_namespace(host: Service, store: Path) -> None:
    """The second container has its tree from the mount of the first, and both have owners of their own."""
    script = "cat /proc/self/uid_map; stat -c %u /large; wc -c </large; : >$IMAGEFS_READY && read line"
    command = ("run", "--userns", "auto", f"{store}#small", "--", "sh", "-c", script)
    running = [host.start(*command, stdin=-1) for _ in range(2)]
    eventually(lambda: all(image["ready"] for image in host.status()["images"]), "both jobs to be ready")
    lines = [process.communicate("\n", timeout=60)[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert [line[1:] for line in lines] == [["0", str(8 << 20)]] * 2
    firsts = [int(line[0].split()[1]) for line in lines]
    assert all(524_288 <= first <= 0x6FFF0000 for first in firsts)
    assert firsts[0] != firsts[1]
    assert host.status()["images"] == []


FUSE = "the image is shown by fuse.imagefs, which can be shown to no user namespace; --plane erofs, the kernel's own\n"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--userns", "auto", "--plane", "tree"], 125, FUSE),
        (["--userns", "auto", "--deps", "requirements.txt"], 2, "--userns and --deps do not go together"),
        (["--oci-runtime", "nosuch"], 125, "there is no program nosuch; --oci-runtime takes runc"),
        (["--startup-cache", "nosuch"], 125, "--startup-cache nosuch: 'nosuch' is no cache that is known"),
        (["--startup-cache", "auto", "--userns", "auto"], 125, "--userns and --startup-cache do not go together"),
        (["--startup-cache=auto", "--ready-file=/tmp/x"], 125, "--ready-file and --startup-cache do not go together"),
    ],
)
def test_what_cannot_be_run_is_one_line(host: Service, store: Path, options: list[str], code: int, said: str) -> None:
    done = host.run("run", *options, f"{store}#small")
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(f"imagefs: {said}")
    assert host.status()["images"] == []


# -- limits: the container is bounded by its cgroup, and a limit that cannot be enforced is an error -------------------


LIMITS = ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max", "pids.max")


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_limits_are_in_force(host: Service, store: Path, runtime: str) -> None:
    """The cgroup has the limits while the container runs; then it runs into one of them."""
    parent = f"/imagefs-limits-{os.getpid()}"
    limits = ("--memory=64MiB", "--cpus=0.5", "--pids-limit=12", "--cgroup-parent", parent, "--oci-runtime", runtime)
    script = "echo begun; read line; while sleep 1000 & do :; done"
    try:
        process = host.start("run", *limits, f"{store}#small", "--", "sh", "-c", script, stdin=-1)
        assert next_line(process) == "begun\n"
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


def cgroups(parent: str) -> list[Path]:
    """The cgroup of this name in every hierarchy that has it."""
    tops = [mount.path for mount in kernel.mounts() if mount.fstype in ("cgroup", "cgroup2")]
    return [Path(top + parent) for top in tops if Path(top + parent).is_dir()]
