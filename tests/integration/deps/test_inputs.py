"""Inputs of a start that differ: another host, another interpreter, or a file that changes while it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.deps.commanding import ARGUMENTS, UV_ARGUMENTS, deps, names, value
from tests.integration.deps.conftest import Job
from tests.support.deps.wheels import uv, venv
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]


def test_another_patch_of_python(service: Service, folder: Path, target: Path) -> None:
    """An interpreter that was brought up to date where it is: what was installed for the one before is not for it."""
    python = venv(folder / "env")
    (site,) = (folder / "env").glob("lib/*/site-packages")
    arguments = ("--python", python, "--target", target, *UV_ARGUMENTS)
    deps(service, "uv", "--wait", *arguments)
    shutil.rmtree(target)
    (site / "sitecustomize.py").write_text("import platform\nplatform.python_version = lambda: '3.11.99'\n")
    ask = "import platform; print(platform.python_version())"
    assert subprocess.run([python, "-I", "-c", ask], capture_output=True).stdout == b"3.11.99\n"
    assert "miss" in deps(service, "uv", "--wait", *arguments)
    assert value(sys.executable, target) == "15"
    assert len(names(folder)) == 2


def test_another_umask(service: Service, folder: Path, target: Path) -> None:
    """A snapshot that only its owner may read is not mounted where others are to read it."""
    arguments = ["deps", "uv", "--wait", "--target", str(target), *UV_ARGUMENTS]
    process = service.start(*arguments, umask=0o077)
    assert (process.communicate()[1].count("miss"), process.returncode) == (1, 0)
    assert (target / "heavy/__init__.py").stat().st_mode & 0o777 == 0o600
    shutil.rmtree(target)
    process = service.start(*arguments, umask=0o022)
    assert (process.communicate()[1].count("miss"), process.returncode) == (1, 0)
    assert (target / "heavy/__init__.py").stat().st_mode & 0o777 == 0o644
    assert len(names(folder)) == 2


def test_a_file_that_changes_while_it_is_installed_from(
    service: Service, folder: Path, target: Path, jobs: list[Job]
) -> None:
    """It is unknown which of the two versions was read, so nothing is kept, and no snapshot is taken for another."""
    before = (folder / "requirements.txt").read_text()
    script = folder / "install.sh"
    script.write_text(f"set -e\necho '# more' >> requirements.txt\n{' '.join(uv('--target', target, *ARGUMENTS))}\n")
    arguments = (
        "run",
        "--wait",
        "--owner",
        jobs[0].pid,
        "--target",
        target,
        "--input",
        "requirements.txt",
        "--",
        "sh",
        script,
    )
    told = deps(service, *arguments)
    assert "not published: what it is installed from was changed meanwhile" in told
    assert value(sys.executable, target) == "15"
    assert names(folder) == []
    (folder / "requirements.txt").write_text(before)
    jobs[0].end()
    assert "miss" in deps(service, *arguments[:2], *arguments[4:])
