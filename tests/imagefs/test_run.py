"""Containers by runc and crun: what the command sees and may do, what comes back, and that nothing stays."""

from __future__ import annotations

import os
import pty
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.plane import erofs, overlay
from imagefs.plane.unmount import unmount
from imagefs.run import folder
from imagefs.run.options import Bind, Limits
from stripefs.mount import kernel
from tests.imagefs import small_image
from tests.imagefs.containers import Containers, fill, wait_for
from tests.imagefs.small_image import SmallImage, loops

pytestmark = [pytest.mark.mount, pytest.mark.root]

both = pytest.mark.parametrize("runtime", ["crun", "runc"])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> SmallImage:
    root = tmp_path_factory.mktemp("source") / "root"
    fill(root)
    return small_image.make(root, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def _all(image: SmallImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    made = Containers(image, tmp_path_factory.mktemp("containers"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def containers(_all: Containers) -> Iterator[Containers]:
    yield _all
    assert _all.left() == []


# What comes back


@both
def test_exit_status_and_output(containers: Containers, runtime: str) -> None:
    status, output, errors = containers.run("sh", "-c", "echo out; echo err >&2; exit 7", runtime=runtime)
    assert (status, output, errors) == (7, "out\n", "err\n")


@both
@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("nothing", 127, "CommandNotFound the container has no nothing"),
        ("/bin/nothing", 127, "CommandNotFound the container has no /bin/nothing"),
        ("/bin/plain", 126, "CommandNotExecutable the container cannot execute /bin/plain"),
        ("/etc", 126, "CommandNotExecutable the container cannot execute /etc"),
    ],
)
def test_a_command_that_cannot_be_run(
    containers: Containers, runtime: str, command: str, status: int, said: str
) -> None:
    ended, output, errors = containers.run(command, runtime=runtime)
    assert (ended, output) == (status, "")
    assert said in errors


def test_what_cannot_be_prepared_says_why(containers: Containers, image: SmallImage) -> None:
    broken = SmallImage(image.metadata, image.device + "-that-is-not-there")
    status, _, errors = containers.run("true", image=broken)
    assert (status, "RunError" in errors, "EROFS refused" in errors) == (125, True, True)
    assert containers.run("true", runtime="docker")[0] == 125
    assert containers.run("true", user="bob")[0] == 125
    assert containers.run("true", devices=["/etc/passwd"])[0] == 125
    assert containers.run("true", binds=[Bind("/nothing", "/tmp/nothing")])[0] == 125
    assert containers.run()[0] == 125


# Signals and ends

TRAPS = "trap 'exit 42' TERM; trap 'exit 43' INT; trap 'exit 44' USR1; echo ready; while :; do sleep 0.05; done"


@both
def test_signals_reach_the_command(containers: Containers, runtime: str) -> None:
    expected = {signal.SIGTERM: 42, signal.SIGINT: 43, signal.SIGUSR1: 44}
    started = {number: containers.start("sh", "-c", TRAPS, runtime=runtime) for number in expected}
    for number, running in started.items():
        running.says("ready")
        running.send(number)
    assert {number: running.end() for number, running in started.items()} == expected


def test_the_image_says_how_it_is_stopped(containers: Containers) -> None:
    running = containers.start("sh", "-c", TRAPS, config={"config": {"StopSignal": "SIGUSR1"}})
    running.says("ready")
    running.send(signal.SIGTERM)
    assert running.end() == 44


@both
def test_a_command_that_a_signal_ends(containers: Containers, runtime: str) -> None:
    running = containers.start("sh", "-c", "echo ready; exec sleep 1000", runtime=runtime)
    running.says("ready")
    [sleep] = [pid for pid in containers.processes() if command(pid) == b"sleep\x001000\0"]
    os.kill(sleep, signal.SIGKILL)
    assert running.end() == 128 + signal.SIGKILL


def test_a_signal_before_the_command_runs(containers: Containers, tmp_path: Path) -> None:
    running = containers.start("echo", "ran", hold=str(tmp_path / "never"))
    assert wait_for(containers.names)
    assert wait_for(lambda: len(containers.processes()) == 2)
    running.send(signal.SIGTERM)
    assert running.end() == 128 + signal.SIGTERM
    assert running.output == ""


@both
def test_daemons_end_with_the_command(containers: Containers, runtime: str) -> None:
    daemon = "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000' >/dev/null 2>&1 &) & sleep 0.1; exit 3"
    assert containers.run("sh", "-c", daemon, runtime=runtime)[0] == 3


@both
def test_a_parent_that_is_killed_leaves_nothing(containers: Containers, runtime: str) -> None:
    daemon = "setsid sleep 1000 & touch /new; echo ready; sleep 1000"
    running = containers.start("sh", "-c", daemon, runtime=runtime, writable=True, backing="loop")
    running.says("ready")
    [name] = containers.names()
    assert containers.cgroups()
    assert Path(containers.scratch_dir, name, "upper/new").exists()
    running.send(signal.SIGKILL)
    assert running.end() == -signal.SIGKILL
    assert wait_for(lambda: not containers.processes())
    assert wait_for(lambda: not loops(Path(containers.image.metadata).parent))
    assert wait_for(lambda: folder.sweep(containers.runtime_dir) == [name])
    assert containers.left() == []


def test_a_parent_that_is_killed_while_it_mounts(containers: Containers, tmp_path: Path) -> None:
    running = containers.start("true", hold=str(tmp_path / "never"))
    assert wait_for(lambda: len(containers.processes()) == 2)
    running.send(signal.SIGKILL)
    running.end()
    assert wait_for(lambda: not containers.processes())
    assert wait_for(lambda: containers.run("true")[0] == 0 and not containers.names())  # a run sweeps


def test_several_at_once(containers: Containers) -> None:
    script = "echo ready; touch /tmp/{0} /srv/{0}; until [ -e /go/now ]; do sleep 0.02; done; ls /tmp /srv; exit {0}"
    go = containers.folder / "go"
    go.mkdir()
    binds = [Bind(str(go), "/go")]
    started = [
        containers.start(
            "sh", "-c", script.format(number), writable=True, binds=binds, runtime=("crun", "runc")[number % 2]
        )
        for number in (1, 2, 3)
    ]
    for running in started:
        running.says("ready")
    assert len(containers.names()) == 3
    (go / "now").touch()
    assert [running.end() for running in started] == [1, 2, 3]
    assert [running.output.split()[1:] for running in started] == [
        ["/srv:", str(number), "data", "/tmp:", str(number)] for number in (1, 2, 3)
    ]


@both
def test_a_server_of_the_tree_ends_with_the_command(containers: Containers, runtime: str) -> None:
    assert containers.run("sh", "-c", "exit 7", served=True, runtime=runtime)[0] == 7
    assert containers.run("nothing", served=True, runtime=runtime)[0] == 127
    running = containers.start("sh", "-c", TRAPS, served=True, runtime=runtime)
    running.says("ready")
    running.send(signal.SIGUSR1)
    assert running.end() == 44
    running = containers.start("sh", "-c", TRAPS, served=True, runtime=runtime)
    running.says("ready")
    running.send(signal.SIGKILL)
    running.end()
    assert wait_for(lambda: not containers.processes())
    assert wait_for(lambda: folder.sweep(containers.runtime_dir))


# What the command sees


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
def test_rights(containers: Containers, runtime: str) -> None:
    for user, effective in (("root", "00000000a80425fb"), ("ann", "0" * 16)):
        _, output, _ = containers.run("cat", "/proc/self/status", user=user, runtime=runtime)
        known = dict(line.split(":\t", 1) for line in output.splitlines())
        assert (known["CapEff"], known["CapBnd"], known["NoNewPrivs"]) == (effective, "00000000a80425fb", "0")
        assert (known["SigBlk"], known["SigIgn"]) == ("0" * 16, "0" * 16)


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


def test_a_bind_that_the_image_has_no_place_for(containers: Containers, tmp_path: Path) -> None:
    binds = [Bind(str(tmp_path), "/data")]
    status, _, errors = containers.run("true", binds=binds)
    assert status == 125
    assert "no directory /data" in errors
    assert "--rw" in errors
    assert containers.run("ls", "/data", binds=binds, writable=True)[0] == 0
    status, _, errors = containers.run("true", binds=[Bind(str(tmp_path), "/etc/hosts")])
    assert (status, "is a directory" in errors) == (125, True)


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
    _, output, _ = containers.run("stat", "-c", "%F %t %T", "/dev/loop-control", devices=["/dev/loop-control"])
    assert output == f"character special file {os.major(control):x} {os.minor(control):x}\n"


LIMITS = ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max")


@both
def test_limits(containers: Containers, runtime: str) -> None:
    limits = Limits(memory=64 << 20, cpus=1.5, processes=50)
    running = containers.start("sh", "-c", TRAPS, limits=limits, runtime=runtime)
    running.says("ready")
    entries = [entry for group in containers.cgroups() for entry in group.iterdir()]
    found = {entry.name: entry.read_text().strip() for entry in entries if entry.name in LIMITS}
    running.send(signal.SIGTERM)
    assert running.end() == 42
    assert found.get("memory.limit_in_bytes", found.get("memory.max")) == str(64 << 20)
    assert found["pids.max"] == "50"
    assert found.get("cpu.cfs_quota_us", found.get("cpu.max", "")).split()[0] == "150000"


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
def test_volumes_are_memory_with_the_image_s_content(containers: Containers, runtime: str) -> None:
    config = {"config": {"Volumes": {"/srv": {}}}}
    status, output, _ = containers.run("sh", "-c", "ls /srv; touch /srv/new", config=config, runtime=runtime)
    assert (status, output) == (0, "data\n")


def test_where_only_memory_can_be_written(containers: Containers, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    overlay.mount([str(here)], str(tmp_path / "rw"), str(here))
    try:
        status, output, errors = containers.run(
            "sh", "-c", "echo new >/srv/data; cat /srv/data", writable=True, scratch_dir=str(here)
        )
        assert (status, output) == (0, "new\n")
        assert "kept in memory" in errors
        assert os.listdir(here) == []
    finally:
        unmount(str(here))


@both
def test_terminal(containers: Containers, runtime: str) -> None:
    ours, theirs = pty.openpty()
    running = containers.start(
        "sh", "-c", f"stty -a | grep -c isig; test -t 0 -a -t 2 && {TRAPS}", stdio=theirs, runtime=runtime
    )
    os.close(theirs)
    said = b""
    while b"ready" not in said:
        said += os.read(ours, 1000)
    os.write(ours, b"\x03")
    assert running.end() == 43
    os.close(ours)


def test_a_terminal_that_only_the_user_has(containers: Containers) -> None:
    ours, theirs = pty.openpty()
    running = containers.start("sh", "-c", TRAPS, stdio=theirs, terminal=False)
    os.close(theirs)
    said = b""
    while b"ready" not in said:
        said += os.read(ours, 1000)
    os.write(ours, b"\x03")
    assert running.end() == 43
    os.close(ours)


# What the host sees


def test_mounts_of_the_host_do_not_live_on_in_containers(
    containers: Containers, image: SmallImage, tmp_path: Path
) -> None:
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    for place in (kept, gone):
        place.mkdir()
        small = tmp_path / f"{place.name}-image"
        (small / "root").mkdir(parents=True)
        (small / "root/file").write_text(place.name)
        made = small_image.make(small / "root", small)
        erofs.mount(made.metadata, [made.device], str(place), "loop")
    running = containers.start("sh", "-c", f"echo ready; {TRAPS}; cat /srv/file", binds=[Bind(str(kept), "/srv")])
    try:
        running.says("ready")
        for place in (kept, gone):
            kernel.unmount(str(place))
        assert wait_for(lambda: not loops(tmp_path / "gone-image"))
        assert loops(tmp_path / "kept-image")
    finally:
        running.send(signal.SIGTERM)
        assert running.end() == 42
    assert wait_for(lambda: not loops(tmp_path))


def test_nothing_of_it_shows_outside(containers: Containers) -> None:
    running = containers.start("sh", "-c", TRAPS)
    running.says("ready")
    assert not [mount for mount in kernel.mounts() if mount.path.startswith(str(containers.folder))]
    [name] = containers.names()
    entry = Path(containers.runtime_dir, "runs", name)
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700
    assert not list((entry / "rootfs").iterdir())
    running.send(signal.SIGTERM)
    assert running.end() == 42


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
