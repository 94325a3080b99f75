"""Start-up caches of a job whose packages are a dependency snapshot, which are part of their key."""

from __future__ import annotations

import subprocess

import pytest

from imagefs.startup_cache.key import FOLDER
from tests.integration.deps.container.job import Job
from tests.support.deps.installed import snapshots_in
from tests.tools.imagefs_daemon import eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

COMPILE = (
    "import os, heavy, pathlib; made = pathlib.Path(os.environ['NUMBA_CACHE_DIR'], 'kernel');"
    "print(heavy.VALUE, made.exists()); made.write_text('compiled'); pathlib.Path(os.environ['IMAGEFS_READY']).touch();"
    "input()"
)


def compiled(job: Job, *flags: str, snapshots: int) -> str:
    """The output of a job that goes on until the store has so many snapshots."""
    flags = ("--deps-wait", "--startup-cache", "numba", *flags)
    process = job.service.start(*job.words(*flags, script=COMPILE), stdin=subprocess.PIPE)
    eventually(lambda: process.poll() is not None or len(snapshots_in(job.store).stored()) == snapshots, "the caches")
    out, job.told = process.communicate("\n", timeout=60)
    assert process.returncode == 0, job.told
    return out


def test_they_are_found_with_the_same_packages_only(job: Job) -> None:
    assert compiled(job, snapshots=2) == "7 False\n"
    assert f" published: {FOLDER}" in job.told
    stored = snapshots_in(job.store)
    assert sorted(stored.load(name).kind for name in stored.stored()) == ["cache", "container"]
    assert compiled(job, snapshots=2) == "7 True\n"
    assert job.told.count("imagefs run: hit") == 2
    assert compiled(job, "--deps-salt", "other", snapshots=4) == "7 False\n"
    job.nothing_is_left()


def test_they_are_not_used_where_nobody_knows_the_packages(job: Job) -> None:
    script = "import os, heavy; print(heavy.VALUE, os.environ.get('NUMBA_CACHE_DIR'))"
    job.wants("heavy==1.0", "--pre")  # which `--deps-strict` refuses, and pip installs
    assert job.run("--deps-strict", "--startup-cache", "numba", script=script) == "7 None\n"
    assert "start-up caches are not used: nobody knows which packages are installed" in job.told
