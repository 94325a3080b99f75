"""Jobs with their surroundings, run by the command: checkpoints, events, job files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stripefs.cli.cache_warming import STEP
from stripefs.fuse.control import find_mounts
from stripefs.testing.simulated_hosts import write_control
from tests.integration.imagefs.conftest import next_line, programs
from tests.support.caches import write
from tests.support.images.faults import mounts_below
from tests.support.start_events import events_in
from tests.support.waiting import processes
from tests.tools.imagefs_daemon import Service, built, commands, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20

SHARD = 10 * MIB
"""Bytes of each of the four files of a checkpoint."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    path = programs(folder, SHARD, Cmd=["sh", "-c", "echo hello"])
    (folder / "root/large").write_bytes(os.urandom(24 * MIB))
    built(folder / "root", path, "slow", {"config": {"Env": ["PATH=/bin"]}})
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two steps of a training, and a pointer to the newer one, as it was left a while ago."""
    folder = tmp_path / "training"
    for step in (90, 100):
        (folder / f"step_{step}").mkdir(parents=True)
        for rank in range(2):
            write(folder / f"step_{step}/rank{rank}.bin", SHARD, seed=step + rank)
    (folder / "latest").write_text("step_100\n")
    return folder


def slow(path: Path) -> str:
    """The directory as a store on several hosts, which the cache is quicker than."""
    return f"throttled+file://{path}?rate=20MB/s&hosts=4"


@pytest.fixture
def job(host: Service) -> Iterator[Service]:
    """A host on which a job leaves nothing but the daemon's own mount."""
    yield host
    assert mounts_below(host) == [host.settings.devices]
    assert os.listdir(Path(host.settings.runtime, "imagefs/runs")) == [".lock"]


def helpers(host: Service) -> list[int]:
    """Processes that read checkpoints for jobs of this host."""
    mine = os.fsencode(host.settings.runtime)
    ours = {pid for pid, words in processes("environ") if any(mine in word for word in words)}
    modules = {"imagefs.jobs.warming", "stripefs.fuse.store_worker"}
    return [pid for pid, words in commands() if pid in ours and modules & {*words}]


def warmed(folder: Path) -> list[dict[str, Any]]:
    """The end of each warming."""
    found = [one for one in events_in(folder) if one["name"] == "warmed"]
    return [one["facts"] for one in found]


def kept(host: Service) -> int:
    """Bytes of checkpoints on local disk."""
    top = Path(host.settings.cache, "checkpoints")
    return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file())


def test_a_checkpoint_is_shown_and_warmed(job: Service, store: Path, checkpoint: Path) -> None:
    script = "ls /ckpt; echo x > /ckpt/new || echo read-only; read line; busybox md5sum /ckpt/step_100/*"
    source = f"{slow(checkpoint)}:/ckpt"
    process = job.start("run", "--checkpoint", source, f"{store}#small", "--", "sh", "-c", script, stdin=-1)
    eventually(lambda: kept(job) >= 4 * SHARD, "all of it to be warmed")
    out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, err) == (0, "sh: can't create /ckpt/new: Read-only file system\n")
    sums = [hashlib.md5(path.read_bytes()).hexdigest() for path in sorted(checkpoint.glob("step_100/*"))]
    assert out.split()[:4] == ["latest", "step_100", "step_90", "read-only"]
    assert out.split()[4::2] == sums


def test_what_a_job_writes_is_in_the_store_when_it_ends(job: Service, store: Path, checkpoint: Path) -> None:
    script = "mkdir /ckpt/step_110 && cat /large > /ckpt/step_110/rank0.bin"
    options = ["--checkpoint-warm", "none", "--checkpoint-option", "layout=concat"]
    job.ok("run", *options, "--checkpoint", f"{checkpoint}:/ckpt:rw", f"{store}#small", "--", "sh", "-c", script)
    assert (checkpoint / "step_110/rank0.bin").stat().st_size == SHARD


def test_a_warming_that_is_killed_is_told(job: Service, store: Path, checkpoint: Path) -> None:
    command = ["run", "--checkpoint", slow(checkpoint), f"{store}#small", "--", "sh", "-c", "echo; read line"]
    process = job.start(*command, stdin=-1)
    next_line(process)
    (warming,) = [pid for pid, words in commands() if "imagefs.jobs.warming" in words and pid in helpers(job)]
    os.kill(warming, signal.SIGKILL)
    _out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, err) == (0, f"imagefs: --checkpoint {slow(checkpoint)} is not warmed: signal 9\n")


def test_the_image_has_its_share_of_the_link(job: Service, store: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Until its blocks are here, the newest checkpoint has at most a third of what came, beyond its first step."""
    events, control = tmp_path / "events", tmp_path / "control"
    write_control(control, {"h0": "100kB/s"})
    image = f"throttled+file://{store}?rate=6MB/s&hosts=1&control={control}#slow"
    options = ["--events", str(events), "--checkpoint-share", "0.25", "--checkpoint-warm", "latest"]
    options += ["--checkpoint", slow(checkpoint)]
    process = job.start("run", *options, image, "--", "sh", "-c", "read line", stdin=-1)
    eventually(lambda: [one for one in events_in(events) if one["name"] == "warm"], "the begin of the warming")
    write_control(control, {"h0": "up"})
    eventually(lambda: warmed(events), "the end of the warming")
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    (facts,) = warmed(events)
    assert facts["bytes"] == facts["store_bytes"] + facts["cache_bytes"] == 2 * SHARD
    assert facts["image_bytes"] > 10 * MIB
    assert 0 < facts["beside_image_bytes"] <= STEP + facts["image_bytes"] // 3


def test_an_image_is_unpacked_before(job: Service, store: Path, tmp_path: Path) -> None:
    """As a pull does: the container reads nothing from a mount, and the copy goes with it."""
    events = tmp_path / "events"
    script = "busybox grep -c erofs /proc/mounts; stat -c %a /tmp; stat -c %u /home/ann; echo x > /new; cat /new"
    out = job.ok("run", "--unpack", "--rw", "--events", str(events), f"{store}#small", "--", "sh", "-c", script)
    assert out == "0\n755\n0\nx\n"
    assert [one["event"] for one in events_in(events) if one["name"] == "unpack"] == ["begin", "end"]
    assert os.listdir(Path(job.settings.cache, "upper")) == []


@pytest.mark.parametrize("alone", [True, False])
def test_a_job_that_is_killed_leaves_no_mount(job: Service, store: Path, checkpoint: Path, alone: bool) -> None:
    """By itself; where its helpers are killed with it, after the next job."""
    command = ["run", "--checkpoint", slow(checkpoint), f"{store}#small", "--", "sh", "-c"]
    process = job.start(*command, "ls /checkpoint; sleep 1000")
    assert next_line(process) == "latest\n"
    supervisors = [one.supervisor_pid for one in find_mounts() if Path(one.mountpoint).is_relative_to(job.folder)]
    for pid in [*([] if alone else supervisors), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    if alone:
        eventually(lambda: mounts_below(job) == [job.settings.devices], "the end of the mount")
    assert len(mounts_below(job)) == (1 if alone else 2)
    eventually(lambda: not helpers(job), "the end of its processes")
    job.ok("run", f"{store}#small")


def test_a_store_that_is_away_ends_the_start(job: Service, store: Path) -> None:
    done = job.run("run", "--checkpoint", "hdfs://127.0.0.1:9/checkpoints", f"{store}#small")
    assert done.returncode == 125
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("imagefs: --checkpoint hdfs://127.0.0.1:9/checkpoints: ")


def test_a_job_file(job: Service, store: Path, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(
        f'image = "{store}#small"\ncommand = ["sh", "-c", "echo $A $B $BOOTSEER_JOB; ls $1", "sh"]\n'
        f'checkpoint = ["{checkpoint}:/ckpt"]\nevents = "{tmp_path / "events"}"\nmemory = "64MiB"\n'
        'hostname = "one"\n\n[env]\nA = 1\nB = "x"\n'
    )
    assert job.ok("run", "--job", str(file), "--env", "B=y", "/ckpt") == "1 y train\nlatest\nstep_100\nstep_90\n"
    assert job.ok("run", str(file), "/ckpt/step_90") == "1 x train\nrank0.bin\nrank1.bin\n"
    assert {one["job"] for one in events_in(tmp_path / "events")} == {"train"}


def test_a_job_adds_its_events(job: Service, store: Path, tmp_path: Path) -> None:
    """Any image with Python can; here the script is looked at, and a file of the container's user is made."""
    folder = tmp_path / "events"
    script = (
        "busybox head -c 3 /run/imagefs/startup_events.py; : > $BOOTSEER_EVENTS/mine; touch $IMAGEFS_READY;"
        "env | busybox grep BOOTSEER"
    )
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    command = ["run", "--user=1234", "--env=TRACEPARENT", f"--events={folder}", f"{store}#small", "--", "sh", "-c"]
    job.environment |= {"TRACEPARENT": trace, "RANK": "3"}
    out = job.ok(*command, script)
    assert out.startswith('"""')
    said = dict(line.split("=", 1) for line in out.replace('"""', "").splitlines() if line)
    run = said.pop("BOOTSEER_RUN")
    assert run == "a" * 32
    assert said == {
        "BOOTSEER_EVENTS": "/run/imagefs/events", "BOOTSEER_JOB": "small", "BOOTSEER_ATTEMPT": "0",
        "BOOTSEER_NODE": os.uname().nodename, "BOOTSEER_RANK": "3",
    }  # fmt: skip
    assert (folder / "mine").exists()
    shown = job.ok("run", "--events", str(folder), f"{store}#small", "--", "cat", "/proc/self/mounts")
    (options,) = (line.split()[3] for line in shown.splitlines() if line.split()[1] == "/run/imagefs/events")
    assert {"nosuid", "nodev", "noexec"} <= set(options.split(","))


def test_events_are_collected_at_the_end(job: Service, store: Path, tmp_path: Path) -> None:
    """A collector that is away harms no job."""
    spool, collector = tmp_path / "events", tmp_path / "collector"
    collector.mkdir()
    options = ["run", "--events", str(spool), "--collector"]
    job.ok(*options, str(collector), f"{store}#small")
    copied = [line for path in collector.rglob("*.jsonl*") for line in path.read_text().splitlines()]
    assert {json.loads(line).get("name") for line in copied} >= {"attach", "exec"}
    done = job.run(*options, str(tmp_path / "nothing/there"), f"{store}#small")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert job.run("run", "--collector", str(collector), f"{store}#small").returncode == 2


def test_a_checkpoint_in_a_user_namespace(job: Service, store: Path, checkpoint: Path) -> None:
    command = ["run", "--userns", "auto", "--checkpoint", f"{checkpoint}:/ckpt", f"{store}#small", "--", "ls", "/ckpt"]
    for runtime in ("crun", "runc"):
        assert job.ok(*command[:1], "--oci-runtime", runtime, *command[1:]) == "latest\nstep_100\nstep_90\n"


def test_a_checkpoint_with_an_image_that_is_away(job: Service, tmp_path: Path, checkpoint: Path) -> None:
    """The start ends, and its mount with it."""
    done = job.run("run", "--checkpoint", str(checkpoint), f"{tmp_path}/nothing#small")
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
