"""A job that is compared: each way really starts it, and nothing is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.integration.deps.container.job import CGROUP, Job, cgroups
from tests.support.caches import write
from tests.tools.imagefs_daemon import commands, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

SCRIPT = """
import heavy, os, pathlib, sys, time
sys.path.insert(0, "/run/imagefs"); import startup_events
writer = startup_events.default_writer()
with writer.begin("checkpoint", "load"):
    size = sum(len(path.read_bytes()) for path in pathlib.Path("/ckpt").iterdir())
assert (heavy.VALUE, size) == (7, 3 << 20)
writer.close()
pathlib.Path(os.environ["IMAGEFS_READY"]).touch()
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def temporary(job: Job, tmp_path: Path) -> Iterator[Path]:
    """The folder for temporary files, in which nothing is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    job.service.environment["TMPDIR"] = str(folder)
    yield folder
    assert list(folder.iterdir()) == []
    assert [one.path for one in kernel.mounts() if Path(one.path).is_relative_to(folder)] == []
    assert [path for top in cgroups() for path in top.glob("imagefs-*")] == []
    assert [words for _, words in commands() if any(str(folder) in word for word in words)] == []


def test_a_job_is_compared(job: Job, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    write(tmp_path / "checkpoint/model", 3 << 20)
    file = tmp_path / "job.toml"
    file.write_text(
        f'image = "{job.image}"\ncommand = ["python3", "-c", """{SCRIPT}"""]\n'
        f'deps = ["{job.requirements}"]\nstore = "{job.store}"\ncgroup-parent = "{CGROUP}"\n'
        f'checkpoint = ["throttled+file://{tmp_path}/checkpoint?rate=20MB/s:/ckpt"]\n'
    )
    done = job.service.run("compare", str(file), "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert "plan" not in done.stderr  # the image has one
    ways = {one["name"]: one for one in json.loads(done.stdout)["ways"]}
    assert list(ways) == ["none", "image", "deps", "checkpoint", "all"]
    assert all(0 < one["median"] == one["least"] == one["most"] for one in ways.values())
    assert all({"image", "container", "dependencies", "checkpoint"} <= {*one["stages"]} for one in ways.values())


def test_a_comparison_that_is_killed_leaves_nothing_after_the_next(job: Job, temporary: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    begin = f'image = "{job.image}"\ncgroup-parent = "{CGROUP}"\n'
    file.write_text(begin + 'command = ["python3", "-c", "import time; time.sleep(1000)"]\n')
    process = job.service.start("compare", str(file))
    eventually(lambda: list(temporary.glob("*/run/imagefs/runs/imagefs-*/pid")), "the container")
    process.kill()
    process.wait()  # a process that is ending still has its lock
    ready = "import os, time; open(os.environ['IMAGEFS_READY'], 'w'); time.sleep(1000)"
    file.write_text(begin + f'command = ["python3", "-c", "{ready}"]\n')
    done = job.service.run("compare", str(file), "--rounds", "1")
    assert done.returncode == 0, done.stderr
    heads, *rows = [line.split() for line in done.stdout.splitlines()]
    assert heads == ["techniques", "seconds", "of", "none", "image", "container"]
    assert [row[0] for row in rows] == ["none", "image"]
    assert rows[0][3] == "1.00"


def test_a_job_that_fails_is_told(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f'image = "{job.image}"\ncommand = ["python3", "-c", "raise SystemExit(\'no data\')"]\n')
    done = job.service.run("compare", str(file))
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1] == "imagefs: the job fails when it is started with image: no data"
