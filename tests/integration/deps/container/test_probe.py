"""The probe before publication runs on the packed snapshot, mounted above the image as a hit would have it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.deps.container.job import SEEN, Job, project, sources
from tests.integration.deps.python_image import PREFIX
from tests.integration.deps.test_probe import running
from tests.support.deps.installed import snapshots_in
from tests.tools.imagefs_daemon import eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

INSTALLED = "import heavy, os; assert os.path.exists('/etc/written')"
PACKED = "import heavy, os; assert not os.path.exists('/etc/written')"
"""Probes that each pass in one of the two: files written elsewhere are not packed."""

ELSEWHERE = ["--ignore-outside", "/etc/written"]


@pytest.fixture
def untidy(job: Job) -> Job:
    """A job that needs a package whose build writes elsewhere."""
    job.wants(*sources(project(job.folder / "project", "open('/etc/written', 'w').write('x')")))
    return job


def test_what_fails_when_it_is_packed_is_not_published(untidy: Job) -> None:
    """Although it runs with what was installed."""
    assert untidy.run("--deps-wait", *ELSEWHERE, "--deps-probe", INSTALLED) == SEEN
    assert "not published: the probe failed: python3 of the image failed: AssertionError" in untidy.told
    assert snapshots_in(untidy.store).stored() == {}
    assert snapshots_in(untidy.store).images.images() == {}
    untidy.nothing_is_left()


@pytest.mark.parametrize(
    "options",
    [
        ["--plane", "erofs", "--oci-runtime", "crun"],
        ["--plane", "erofs", "--erofs-backing", "loop", "--oci-runtime", "runc"],
        ["--plane", "tree", "--rw"],
    ],
    ids=["erofs", "loop", "tree"],
)
def test_what_runs_when_it_is_packed_is_published(untidy: Job, options: list[str]) -> None:
    """Although it would fail with what was installed."""
    assert untidy.run("--deps-wait", *options, *ELSEWHERE, "--deps-probe", PACKED) == SEEN
    assert " published:" in untidy.told
    (name,) = snapshots_in(untidy.store).stored()
    assert snapshots_in(untidy.store).load(name).findings == ()
    assert untidy.run(*options, *ELSEWHERE, "--deps-probe", PACKED) == SEEN
    assert "hit" in untidy.told
    untidy.nothing_is_left()


def test_it_runs_in_a_container_like_the_job_s(job: Job) -> None:
    """By the interpreter that was named, with the job's variables and limits, and with the target's packages."""
    python = f"{PREFIX}/bin/../bin/python3"
    told = "import heavy, os, sys; sys.exit(' '.join([sys.orig_argv[0], os.environ['KIND'], heavy.__file__]))"
    flags = ["--deps-target", "/opt/deps", "--deps-python", python, "--env", "KIND=seen", "--memory", "512m"]
    script = "import sys; sys.path.append('/opt/deps'); import heavy; print(heavy.VALUE)"
    assert job.run("--deps-wait", *flags, "--deps-probe", told, script=script) == "7\n"
    assert f"of the image failed: {python} seen /opt/deps/heavy/__init__.py" in job.told
    assert snapshots_in(job.store).stored() == {}
    job.nothing_is_left()


def test_where_what_was_packed_cannot_be_mounted(untidy: Job) -> None:
    """It runs on what was installed, and the snapshot says so."""
    untidy.kernel_refuses('target.endswith("/layers/0")')
    assert untidy.run("--deps-wait", *ELSEWHERE, "--deps-probe", PACKED) == SEEN
    assert "not published: the probe failed" in untidy.told
    assert snapshots_in(untidy.store).stored() == {}
    assert untidy.run("--deps-wait", *ELSEWHERE, "--deps-probe", INSTALLED) == SEEN
    (name,) = snapshots_in(untidy.store).stored()
    noted = "the probe ran on what was installed: the kernel refuses it"
    assert snapshots_in(untidy.store).load(name).findings == (noted,)
    untidy.nothing_is_left()


def test_a_publisher_that_is_killed_leaves_nothing(job: Job) -> None:
    """While the job goes on, which does not wait for the probe."""
    mark = f"# {job.folder}"
    assert job.run("--deps-probe", f"import heavy, time; time.sleep(1000) {mark}") == SEEN
    publisher = int(job.told.rpartition("(process ")[2].partition(")")[0])
    eventually(lambda: running(mark), "the probe")
    assert snapshots_in(job.store).stored() == {}
    os.kill(publisher, signal.SIGKILL)
    eventually(lambda: not running(mark), "the end of the probe")
    job.nothing_is_left()
