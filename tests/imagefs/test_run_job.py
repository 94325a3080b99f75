"""Jobs with their surroundings, run by the command: checkpoints, events, job files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.mount import kernel
from tests.imagefs.containers import fill
from tests.imagefs.service import Service, built, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

MIB = 1 << 20

CONFIG = {"config": {"Env": ["PATH=/bin"], "Cmd": ["sh", "-c", "echo hello"]}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    fill(root)
    (root / "large").write_bytes(os.urandom(24 * MIB))
    path = tmp_path_factory.mktemp("store")
    built(root, path, "small", CONFIG)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two steps of a training, and a pointer to the newer one."""
    folder = tmp_path / "training"
    for step in (90, 100):
        (folder / f"step_{step}").mkdir(parents=True)
        for rank in range(2):
            (folder / f"step_{step}/rank{rank}.bin").write_bytes(os.urandom(10 * MIB))
    (folder / "latest").write_text("step_100\n")
    return folder


@pytest.fixture
def job(host: Service) -> Iterator[Service]:
    """A host on which a job leaves nothing but the daemon's own mount."""
    yield host
    assert mounts(host) == [host.settings.devices]
    assert os.listdir(Path(host.settings.runtime, "imagefs/runs")) == [".lock"]


def mounts(host: Service) -> list[str]:
    return [one.path for one in kernel.mounts() if Path(one.path).is_relative_to(host.folder)]


def helpers(host: Service) -> list[int]:
    """Processes of checkpoints."""
    return [pid for pid, words in host._commands() if "imagefs.jobs.warming" in words or "stripefs.mount.daemon" in words]


def kept(host: Service) -> int:
    """Bytes of checkpoints on local disk."""
    top = Path(host.settings.cache, "checkpoints")
    return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file())


def test_a_checkpoint_is_shown_and_warmed(job: Service, store: Path, checkpoint: Path) -> None:
    script = "cat /ckpt/step_100/rank1.bin | busybox md5sum; echo x > /ckpt/new 2>/dev/null || echo read-only; read line"
    process = job.start("run", "--checkpoint", f"{checkpoint}:/ckpt", f"{store}#small", "--", "sh", "-c", script, stdin=-1)
    eventually(lambda: kept(job) >= 40 * MIB, "all of it to be warmed")
    out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[1:] == ["read-only"]


def test_a_job_that_is_killed_leaves_no_mount(job: Service, store: Path, checkpoint: Path) -> None:
    command = ["run", "--checkpoint", str(checkpoint), f"{store}#small", "--", "sh", "-c"]
    process = job.start(*command, "ls /checkpoint; sleep 1000")
    assert process.stdout is not None
    assert process.stdout.readline() == "latest\n"
    assert len(mounts(job)) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    eventually(lambda: mounts(job) == [job.settings.devices], "the end of the mount")
    job.ok("run", f"{store}#small")


def test_a_store_that_is_away_ends_the_start(job: Service, store: Path) -> None:
    done = job.run("run", "--checkpoint", "hdfs://127.0.0.1:9/checkpoints", f"{store}#small")
    assert done.returncode == 125
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("imagefs run: --checkpoint hdfs://127.0.0.1:9/checkpoints: ")
