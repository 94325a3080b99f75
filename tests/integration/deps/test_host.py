"""Starts on one host, hits and misses, of many users and of many starts; and on many hosts at once."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from imagefs.deps import publications
from imagefs.housekeeping.verify import verify
from stripefs.fuse import kernel
from tests.integration.deps.conftest import Job
from tests.integration.deps.sharing import publishers
from tests.support.deps.installed import imported, snapshots_in
from tests.support.deps.starting import Starts, away, is_mounted
from tests.support.images.faults import kill_supervisor
from tests.support.start_events import events_in, pairs
from tests.tools.imagefs_daemon import PATIENCE, Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


def test_a_miss_then_hits(
    starts: Starts, service: Service, store: Path, target: Path, tmp_path: Path, jobs: list[Job]
) -> None:
    service.environment |= {"BOOTSEER_EVENTS": str(tmp_path / "events"), "BOOTSEER_RUN": "r7"}
    told = starts.run(user=jobs[0].pid, wait=True)
    assert "miss" in told
    assert "published" in told
    (name,) = snapshots_in(store).stored()
    found = publications.last_outcome(service.settings.cache, name)
    assert found is not None
    assert (found.published, found.stored > 0) == (True, True)
    assert imported(target).stdout == "7 320000\n"
    assert "installed by an earlier start" in starts.run(["false"], user=jobs[1].pid)
    away(target)
    assert "mounted at" in starts.run(["false"], user=jobs[2].pid)
    assert imported(target).stdout == "7 320000\n"
    assert subprocess.run([target / "bin/weigh"], capture_output=True).returncode == 1  # it has no main
    assert "in use already" in starts.run(["false"], user=jobs[1].pid)
    seen = events_in(tmp_path / "events")
    assert [one["name"] for one in seen if one["event"] == "instant"] == ["miss", "hit", "hit", "hit"]
    begin, end = pairs(seen)["dependencies", "install"]
    assert (begin["facts"], "facts" in end) == ({"key": name}, False)
    assert pairs(seen)["dependencies", "mount"][0]["facts"] == {"key": name}
    for job in jobs:
        job.end()
    eventually(lambda: not is_mounted(target), "the end of the mount")


def test_an_installer_that_fails(starts: Starts, store: Path, target: Path) -> None:
    """It is seen as it would be without us, and the next start begins with an empty directory."""
    half = ["sh", "-c", f"mkdir -p {target}/heavy && touch {target}/heavy/half && exit 7"]
    assert "status 7" in starts.run(half, code=7)
    assert "snapshot" in starts.run(wait=True)
    assert not (target / "heavy/half").exists()
    assert len(snapshots_in(store).stored()) == 1


def test_a_secret_is_not_published_and_the_next_start_is_told(starts: Starts, store: Path, target: Path) -> None:
    command = ["sh", "-c", f"{' '.join(starts.install)} && echo 'machine a login b password c' > {target}/.netrc"]
    assert ".netrc" in starts.run(command, wait=True)
    assert snapshots_in(store).stored() == {}
    assert imported(target).returncode == 0
    away(target)
    assert "not published the last time" in starts.run(command)


def test_other_requirements_take_the_place_of_what_was_installed(
    starts: Starts, store: Path, target: Path, jobs: list[Job]
) -> None:
    """Not while a job uses it, and not where somebody put files beside it."""
    starts.run(user=jobs[0].pid, wait=True)
    assert str(jobs[0].pid) in starts.run(code=2, salt="other", user=jobs[1].pid)
    jobs[0].end()
    (target / "mine").write_text("mine")
    assert "such as mine" in starts.run(code=2, salt="other", user=jobs[1].pid)
    (target / "mine").unlink()
    (target / "heavy/__pycache__/kept.nbi").write_text("the cache of a job")
    assert "published" in starts.run(salt="other", user=jobs[1].pid, wait=True)
    assert not (target / "heavy/__pycache__/kept.nbi").exists()
    assert len(snapshots_in(store).stored()) == 2


def test_users_outlive_a_daemon_that_is_killed(starts: Starts, service: Service, target: Path, jobs: list[Job]) -> None:
    """The mount of the next daemon takes the place of the old one, for those who used that as well."""
    starts.run(wait=True)
    away(target)
    starts.run(["false"], user=jobs[0].pid)
    kill_supervisor(service)
    starts.run(["false"], user=jobs[1].pid)
    (image,) = service.status()["images"]
    assert {user for user, _ in image["users"]} == {jobs[0].pid, jobs[1].pid}
    jobs[1].end()
    eventually(lambda: len(service.status()["images"][0]["users"]) == 1, "one user to be gone")
    assert imported(target).stdout == "7 320000\n"
    jobs[0].end()
    eventually(lambda: not is_mounted(target), "the end of the mount")


@pytest.mark.slow
def test_starts_and_publishers_that_are_killed_at_any_moment(
    starts: Starts, service: Service, store: Path, target: Path
) -> None:
    """Never is a part of an installation published, and the next start has all of it."""
    begun, chance = time.monotonic(), random.Random(5)
    starts.run(wait=True, salt="whole")
    whole = time.monotonic() - begun
    for number in range(6):
        shutil.rmtree(target)
        process = starts.begin(salt=f"{number}")
        time.sleep(whole * (number + chance.random()) / 6)
        process.kill()
        process.communicate()
        for publisher in publishers(service):
            with contextlib.suppress(ProcessLookupError):
                os.kill(publisher, signal.SIGKILL)
        assert verify(snapshots_in(store).images).damage == []
        starts.run(salt=f"{number}", patience=0, wait=True)
        assert imported(target).stdout == "7 320000\n"
        if is_mounted(target):
            service.ok("umount", str(target))


def test_what_a_killed_publisher_has_not_published_the_next_start_does(
    starts: Starts, store: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    probe = f"import os, time; os.path.exists({str(slow)!r}) and time.sleep(600)"
    (publisher,) = map(int, re.findall(r"in the background \(process (\d+)\)", starts.run(probe=probe)))
    assert "in the background" not in starts.run(["false"], probe=probe)  # it lives
    os.kill(publisher, signal.SIGKILL)
    slow.unlink()
    eventually(lambda: not os.path.exists(f"/proc/{publisher}"), "the end of the publisher")
    told = starts.run(["false"], wait=True)
    assert "installed by an earlier start" in told
    assert " published: " in told
    assert len(snapshots_in(store).stored()) == 1
    assert "published" not in starts.run(["false"], wait=True)


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["miss", "hit"])
def test_several_starts_at_once_on_one_host(
    starts: Starts, service: Service, target: Path, jobs: list[Job], known: bool
) -> None:
    """One installs or mounts, and all use that. The first of them starts the daemon, too."""
    if known:
        starts.run(wait=True)
        away(target)
    service.stop()
    begun = [starts.begin(user=jobs[0].pid) for _ in range(5)]
    told = [process.communicate(timeout=PATIENCE * 4)[1] for process in begun]
    assert [process.returncode for process in begun] == [0] * 5
    assert sum("mounted at" in line if known else "miss" in line for line in told) == 1
    assert sum(("in use already" if known else "by an earlier start") in line for line in told) == 4
    assert [mount.path for mount in kernel.mounts()].count(str(target)) == int(known)
    assert imported(target).stdout == "7 320000\n"
