"""Start-up caches of a job whose packages are a dependency snapshot: these are part of their key."""

from __future__ import annotations

import pytest

from imagefs.startup_cache.table import FOLDER
from tests.deps.container.job import Job
from tests.deps.installed import snapshots_in
from tests.imagefs.service import eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

COMPILE = (
    "import os, heavy, pathlib; made = pathlib.Path(os.environ['NUMBA_CACHE_DIR'], 'kernel');"
    "print(heavy.VALUE, made.exists()); made.write_text('compiled'); pathlib.Path(os.environ['IMAGEFS_READY']).touch()"
)


def test_they_are_found_with_the_same_packages_only(job: Job) -> None:
    flags = ("--deps-wait", "--startup-cache", "numba")
    assert job.run(*flags, script=COMPILE) == "7 False\n"
    assert f" published: {FOLDER}" in job.told
    assert sorted(snapshots_in(job.store).load(name).kind for name in snapshots_in(job.store).stored()) == [
        "cache",
        "container",
    ]
    assert job.run(*flags, script=COMPILE) == "7 True\n"
    assert job.told.count("imagefs run: hit") == 2
    assert job.run(*flags, "--deps-salt", "other", script=COMPILE) == "7 False\n"
    eventually(lambda: len(snapshots_in(job.store).stored()) == 4, "the other caches")
    job.nothing_is_left()


def test_they_are_not_used_where_nobody_knows_the_packages(job: Job) -> None:
    script = "import os, heavy; print(heavy.VALUE, os.environ.get('NUMBA_CACHE_DIR'))"
    job.wants("heavy==1.0", "--pre")  # which `--deps-strict` refuses, and pip installs
    assert job.run("--deps-strict", "--startup-cache", "numba", script=script) == "7 None\n"
    assert "start-up caches are not used: nobody knows which packages are installed" in job.told
