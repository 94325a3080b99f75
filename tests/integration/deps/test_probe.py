"""The probe before publication runs on the packed snapshot, mounted for it alone at the target."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from imagefs.daemon import processes
from imagefs.deps.engine import probe_failure
from stripefs.fuse import kernel
from tests.integration.deps.commanding import UV_ARGUMENTS, deps
from tests.support.deps.installed import snapshots_in
from tests.support.deps.starting import Starts, is_mounted
from tests.support.deps.wheels import wheel
from tests.tools.imagefs_daemon import Service, commands, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

PICKY = """
import os
with open("/proc/self/mountinfo") as file:
    mounts = [line.split() for line in file]
above = [one for one in mounts if (__file__ + "/").startswith(one[4].rstrip("/") + "/")]
own = max(above, key=lambda one: len(one[4]))  # their order is not that in which they were put there
TYPE = own[own.index("-") + 1]
"""
"""A module that knows on what kind of file system it lies."""


def attached(service: Service) -> list[str]:
    return [one["id"] for one in service.status()["images"]]


def shown(target: Path) -> list[str]:
    """File system types of what is mounted there in any mount namespace."""
    return [mount.fstype for table in processes.tables().values() for mount in table if mount.path == str(target)]


def is_clean(service: Service, target: Path) -> bool:
    """True if nothing is left of a trial."""
    runtime = Path(service.settings.runtime, "imagefs")
    left = [path for name in ("ready", "mounts", "trees") for path in (runtime / name).glob("*")]
    return not attached(service) and not shown(target) and not left


def test_an_interpreter_that_cannot_be_run_fails(tmp_path: Path) -> None:
    """It may be one of the files that were installed."""
    (tmp_path / "python").write_text("no program\n")
    (tmp_path / "python").chmod(0o755)
    told = probe_failure(str(tmp_path / "python"), "import heavy", str(tmp_path))
    assert told == f"{tmp_path}/python cannot be run: Exec format error"


def test_what_fails_when_it_is_packed_is_not_published(
    starts: Starts, service: Service, store: Path, wheels: Path, target: Path
) -> None:
    """Although it runs where it was installed."""
    wheel(wheels, "heavy", {"heavy/__init__.py": PICKY})
    told = starts.run(probe="import heavy; assert heavy.TYPE != 'erofs', heavy.TYPE", wait=True)
    assert "not published: the probe failed: AssertionError: erofs" in told
    assert snapshots_in(store).stored() == {}
    assert snapshots_in(store).images.images() == {}
    eventually(lambda: is_clean(service, target), "the end of the trial")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (["--plane", "erofs"], "erofs"),
        (["--plane", "erofs", "--erofs-backing", "loop"], "erofs"),
        (["--plane", "tree"], "fuse.imagefs"),
    ],
    ids=["erofs", "loop", "tree"],
)
def test_what_runs_when_it_is_packed_is_published(
    service: Service, store: Path, folder: Path, target: Path, options: list[str], kind: str
) -> None:
    """It would fail where it was installed. Files that it writes beside itself are dropped."""
    wheel(folder / "wheels", "heavy", {"heavy/__init__.py": PICKY}, requires=["light"])
    probe = (
        f"import heavy, os; assert heavy.TYPE == {kind!r}, heavy.TYPE; assert not os.access(heavy.__file__, os.W_OK)"
    )
    told = deps(service, "uv", "--target", target, "--wait", *options, "--probe", probe, *UV_ARGUMENTS)
    assert (" published:" in told, "what was installed" in told) == (True, False), told
    (name,) = snapshots_in(store).stored()
    assert snapshots_in(store).load(name).findings == ()
    eventually(lambda: is_clean(service, target), "the end of the trial")


def test_a_publisher_that_is_killed_leaves_nothing(
    starts: Starts, service: Service, store: Path, target: Path, tmp_path: Path
) -> None:
    """And while the probe runs nobody else sees what it sees."""
    script = f"open({str(tmp_path / 'began')!r}, 'w').close(); time.sleep(1000)"
    probe = f"import heavy, subprocess, sys, time; subprocess.run([sys.executable, '-c', {f'import time; {script}'!r}])"
    publisher = int(starts.run(probe=probe).rpartition("(process ")[2].partition(")")[0])
    eventually((tmp_path / "began").exists, "the probe")
    assert running(str(tmp_path / "began"))
    assert (is_mounted(target), shown(target)) == (False, ["erofs"])
    assert len(attached(service)) == 1
    assert snapshots_in(store).stored() == {}
    os.kill(publisher, signal.SIGKILL)
    eventually(lambda: is_clean(service, target), "the end of the trial")
    eventually(lambda: not running(str(tmp_path / "began")), "the end of the probe")
    assert [one.path for one in kernel.mounts() if Path(one.path).is_relative_to(tmp_path)] == []


def running(mark: str) -> list[int]:
    """Processes with this in their command lines."""
    return [pid for pid, words in commands() if any(mark in word for word in words)]
