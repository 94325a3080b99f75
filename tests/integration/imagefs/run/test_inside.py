"""The environment and the rights of a command inside a container."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from imagefs.plane import kernel_mounts
from imagefs.run.options import Bind, ResourceLimits
from stripefs.fuse.mounting import unmount
from tests.integration.imagefs.run.material import TRAPS, both
from tests.support.images import small_image
from tests.support.images.small_image import SmallImage
from tests.tools.containers import Containers, fill

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> SmallImage:
    """An image whose /data and /run/job belong to others than root; /dangling and /torun lead to nothing."""
    root = tmp_path_factory.mktemp("owned") / "root"
    fill(root)
    (root / "data/sub").mkdir(parents=True)
    (root / "data/file").write_text("content")
    (root / "data/again").hardlink_to(root / "data/file")
    (root / "data/link").symlink_to("file")
    os.mkfifo(root / "data/sub/pipe")
    (root / "run/job").mkdir()
    (root / "dangling").symlink_to("/gone/there")
    (root / "torun").symlink_to("run/made")
    described = [
        ("data", 0o700, 1000, 1000),
        ("data/file", 0o640, 1000, 7),
        ("data/link", 0o777, 9, 9),
        ("data/sub", 0o2750, 1000, 8),
        ("data/sub/pipe", 0o604, 0, 0),
        ("run/job", 0o1770, 0, 1000),
    ]
    for number, (path, mode, uid, gid) in enumerate(described, 1):
        os.chown(root / path, uid, gid, follow_symlinks=False)
        if not (root / path).is_symlink():
            (root / path).chmod(mode)
        os.utime(root / path, (1_000_000_000 + number,) * 2, follow_symlinks=False)
    return small_image.make(root, tmp_path_factory.mktemp("image"))


@both
def test_process(containers: Containers, runtime: str) -> None:
    script = "id -u; id -g; id -G; pwd; hostname; echo $HOSTNAME $HOME $COLOUR $PATH"
    image = {"Env": ["PATH=/bin", "COLOUR=blue"], "User": "ann", "WorkingDir": "/srv", "Entrypoint": ["sh", "-c"]}
    config = {"config": {**image, "Cmd": ["never"]}}
    wanted = {"config": config, "hostname": "node7", "env": ["COLOUR=red"], "runtime": runtime}
    status, output, errors = containers.run(script, **wanted)
    assert (status, errors) == (0, "")
    uid, gid, groups, where, host, words = output.splitlines()
    assert (uid, gid, sorted(groups.split())) == ("1234", "100", ["100", "29", "44"])
    assert (where, host, words) == ("/srv", "node7", "node7 /home/ann red /bin")


@both
def test_a_root_that_is_read_only(containers: Containers, runtime: str) -> None:
    script = "for d in / /etc /tmp /run /var/tmp /dev/shm; do touch $d/new 2>/dev/null && echo $d; done; cat /etc/hosts"
    status, output, _ = containers.run("sh", "-c", script, runtime=runtime)
    assert (status, output) == (0, "/tmp\n/run\n/var/tmp\n/dev/shm\n" + Path("/etc/hosts").read_text())


@both
def test_a_root_that_can_be_written(containers: Containers, runtime: str) -> None:
    script = "echo new >/srv/data && rm /etc/passwd && mkdir /made && touch /tmp/x && cat /srv/data && ls -a /made"
    status, output, _ = containers.run("sh", "-c", script, writable=True, runtime=runtime)
    assert (status, output) == (0, "new\n.\n..\n")
    assert containers.run("sh", "-c", "ls /made; id ann -u", runtime=runtime)[1] == "1234\n"


@both
def test_binds(containers: Containers, runtime: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "folder").mkdir()
    binds = [
        Bind(str(tmp_path / "folder"), "/srv"),
        Bind(str(tmp_path / "folder"), "/var/run/made/inside"),
        Bind(str(tmp_path / "file"), "/etc/group", writable=False),
        Bind(str(tmp_path / "file"), "/etc/hosts", writable=False),
    ]
    script = (
        "touch /srv/new; ls /run/made/inside; cat /etc/group /etc/hosts; touch /etc/group 2>/dev/null || echo read-only"
    )
    status, output, errors = containers.run("sh", "-c", script, binds=binds, runtime=runtime)
    assert (status, output, errors) == (0, "new\ncontentcontentread-only\n", "")
    assert (tmp_path / "folder/new").exists()


@both
def test_no_network(containers: Containers, runtime: str) -> None:
    script = "ls /sys/class/net; hostname; cat /sys/class/net/lo/operstate"
    _, output, _ = containers.run("sh", "-c", script, network="none", runtime=runtime)
    name, host, _ = output.splitlines()
    assert name == "lo"
    assert host.startswith("imagefs-")
    _, output, _ = containers.run("sh", "-c", "ls /sys/class/net; hostname", runtime=runtime)
    assert output.split() == [*sorted(os.listdir("/sys/class/net")), os.uname().nodename]


@both
def test_devices(containers: Containers, runtime: str) -> None:
    control = os.stat("/dev/loop-control").st_rdev
    script = f"mknod /tmp/node c {os.major(control)} {os.minor(control)}; : </tmp/node && echo opened"
    wanted = {"writable": True, "runtime": runtime}
    assert containers.run("sh", "-c", script, **wanted)[1] == ""
    assert containers.run("sh", "-c", script, devices=["/dev/loop-control"], **wanted)[1] == "opened\n"
    asked = ("stat", "-c", "%F %t %T %a %u %g", "/dev/loop-control")
    _, output, _ = containers.run(*asked, devices=["/dev/loop-control"], runtime=runtime)
    assert output == subprocess.run(asked, capture_output=True, text=True, check=True).stdout


@both
def test_an_image_with_nothing_but_a_program(containers: Containers, tmp_path: Path, runtime: str) -> None:
    (tmp_path / "root").mkdir(mode=0o711)
    (tmp_path / "root/sh").write_bytes(Path("/bin/busybox").read_bytes())
    (tmp_path / "root/sh").chmod(0o755)
    bare = small_image.make(tmp_path / "root", tmp_path)
    script = "cd /; echo *; read x </proc/self/comm && echo $x; : >/tmp/new && echo wrote; (: >/new) || :"
    config = {"config": {"WorkingDir": "/work/here", "Volumes": {"/data": {}}}}
    status, output, errors = containers.run("/sh", "-c", script, config=config, image=bare, runtime=runtime)
    assert (status, output) == (0, "data dev proc run sh sys tmp work\nsh\nwrote\n")
    assert "Read-only" in errors


@both
@pytest.mark.parametrize("writable", [False, True])
def test_a_volume_has_the_owner_and_mode_that_the_image_gave_it(
    containers: Containers, owned: SmallImage, runtime: str, writable: bool
) -> None:
    config = {"config": {"User": "1000:1000", "Volumes": {"/data": {}, "/lacks/it": {}, "/run/job": {}}}}
    script = (
        "stat -c '%n %a %u:%g %h %Y' /data /data/* /data/sub/* /run/job; stat -c '%n %a %u:%g' /lacks/it; >/data/new"
    )
    status, output, errors = containers.run(
        "sh", "-c", script, image=owned, config=config, runtime=runtime, writable=writable
    )
    assert (status, errors) == (0, "")
    assert output.splitlines() == [
        "/data 700 1000:1000 3 1000000001",
        "/data/again 640 1000:7 2 1000000002",
        "/data/file 640 1000:7 2 1000000002",
        "/data/link 777 9:9 1 1000000003",
        "/data/sub 2750 1000:8 2 1000000004",
        "/data/sub/pipe 604 0:0 1 1000000005",
        "/run/job 1770 0:1000 2 1000000006",
        "/lacks/it 755 0:0",
    ]


@both
def test_a_bind_onto_a_link_to_nothing(containers: Containers, owned: SmallImage, runtime: str, tmp_path: Path) -> None:
    (tmp_path / "inside").touch()
    binds = [Bind(str(tmp_path), "/dangling"), Bind(str(tmp_path), "/torun")]
    script = "ls /dangling/ /gone/there /torun/ /run/made"
    status, output, _ = containers.run("sh", "-c", script, image=owned, binds=binds, writable=True, runtime=runtime)
    assert (status, output.count("inside")) == (0, 4)
    status, output, _ = containers.run("ls", "/torun/", image=owned, binds=binds[1:], runtime=runtime)
    assert (status, output) == (0, "inside\n")
    status, _, errors = containers.run("true", image=owned, binds=binds, runtime=runtime)
    assert (status, "no directory /dangling" in errors) == (125, True)


@both
def test_a_container_finds_its_limits_in_its_cgroup(containers: Containers, runtime: str) -> None:
    script = (
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null;"
        "grep -E ':(pids|memory|):' /proc/self/cgroup | cut -d: -f3 | uniq;"
        "for one in /sys/fs/cgroup /sys/fs/cgroup/*; do mkdir $one/new 2>/dev/null; done;"
        "mount -o remount,rw /sys/fs/cgroup 2>/dev/null"
        " || echo read-only; find /sys/fs/cgroup -name new"
    )
    limits = ResourceLimits(memory=64 << 20)
    _, output, _ = containers.run("busybox", "sh", "-c", script, limits=limits, runtime=runtime)
    assert output == f"{64 << 20}\n/\nread-only\n"


def test_a_container_finds_its_own_cgroup_of_version_2(image: SmallImage, tmp_path: Path) -> None:
    """On a machine of either version. runc alone: crun needs a right for it that root of a container may lack."""
    script = (
        "read first < /sys/fs/cgroup/cgroup.procs; echo $first;"
        "grep ' /sys/fs/cgroup' /proc/mounts | cut -d' ' -f2-4 | cut -d, -f1 | uniq;"
        "mkdir /sys/fs/cgroup/new 2>/dev/null || echo read-only"
    )
    prepare = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    with contextlib.closing(Containers(image, tmp_path, prepare)) as containers:
        _, output, errors = containers.run("busybox", "sh", "-c", script, runtime="runc")
        assert (output, errors) == ("1\n/sys/fs/cgroup cgroup2 ro\nread-only\n", "")
        assert containers.left() == []


def test_where_only_memory_can_be_written(containers: Containers, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    kernel_mounts.mount_overlay([str(here)], str(tmp_path / "rw"), str(here))
    try:
        status, output, errors = containers.run(
            "sh", "-c", "echo new >/srv/data; cat /srv/data", writable=True, scratch_dir=str(here)
        )
        assert (status, output) == (0, "new\n")
        assert "kept in memory" in errors
        assert os.listdir(here) == []
    finally:
        unmount(str(here))


def interrupted(containers: Containers, script: str, **options: Any) -> int:
    """The status of a container that runs `script`, which ends with TRAPS, when ^C is typed at its terminal."""
    ours, theirs = pty.openpty()
    running = containers.start("sh", "-c", script, stdio=theirs, **options)
    os.close(theirs)
    said = b""
    while b"ready" not in said:
        said += os.read(ours, 1000)
    os.write(ours, b"\x03")
    status = running.end()
    os.close(ours)
    return status


@both
def test_terminal(containers: Containers, runtime: str) -> None:
    script = f"stty -a | grep -c isig; test -t 0 -a -t 2 && {TRAPS}"
    assert interrupted(containers, script, runtime=runtime) == 43


def test_a_terminal_that_only_the_user_has(containers: Containers) -> None:
    assert interrupted(containers, TRAPS, terminal=False) == 43
