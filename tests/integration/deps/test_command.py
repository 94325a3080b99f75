"""`imagefs deps run`, `pip`, `uv` and `venv` with real installers, from a requirements file to an import; inputs that
differ, as of another interpreter, or that change meanwhile."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.deps.commanding import ARGUMENTS, UV_ARGUMENTS, deps, names, value
from tests.integration.deps.conftest import Job
from tests.support.deps.wheels import uv, wheel
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]


def test_a_command_that_installs_elsewhere(service: Service, folder: Path, target: Path, tmp_path: Path) -> None:
    """A hit would bring nothing of that, so the command runs each time."""
    arguments = ("run", "--wait", "--target", target, "--", "uv", "pip", "install", *UV_ARGUMENTS, "--target")
    for _ in range(2):
        assert f"not published: there are no files in {target}" in deps(service, *arguments, tmp_path / "elsewhere")
        assert value(sys.executable, tmp_path / "elsewhere") == "15"
        shutil.rmtree(tmp_path / "elsewhere")
    assert names(folder) == []


def test_what_is_open_is_installed_and_not_kept(service: Service, folder: Path, target: Path) -> None:
    (folder / "requirements.txt").write_text("heavy\nlight==1.0\n")
    told = deps(service, "uv", "--strict", "--target", target, *UV_ARGUMENTS)
    assert "requirements.txt:1: heavy" in told
    assert "without a snapshot" in told
    assert value(sys.executable, target) == "15"
    assert names(folder) == []
    shutil.rmtree(target)
    assert "published" in deps(service, "uv", "--wait", "--epoch", "today", "--target", target, *UV_ARGUMENTS)
    assert len(names(folder)) == 1


def test_packages_that_want_others(service: Service, folder: Path, target: Path) -> None:
    wheel(folder / "wheels", "light", {"light/__init__.py": "VALUE = 8\n"}, requires=["torch"])
    arguments = ("--wait", "--target", target, *UV_ARGUMENTS, "--no-deps")
    assert "not published: packages do not fit one another" in deps(service, "uv", *arguments)
    assert names(folder) == []
    shutil.rmtree(target)
    assert "published" in deps(service, "uv", "--allow-conflicts", *arguments)
    (name,) = names(folder)
    assert "requires torch" in service.ok("deps", "inspect", name)


def test_misuse(service: Service, folder: Path, target: Path) -> None:
    assert "--target" in deps(service, "pip", *ARGUMENTS, code=2)
    assert "no such process" in deps(service, "pip", "--owner", "4194305", "--target", target, *ARGUMENTS, code=2)
    assert "Usage: imagefs deps pip" in service.ok("deps", "pip", "--help")
    assert "no option" in deps(service, "run", "--tarket", target, "--", "true", code=2).lower().replace("such ", "")
    del service.environment["IMAGEFS_STORE"]
    assert "IMAGEFS_STORE" in deps(service, "pip", "--target", target, *ARGUMENTS, code=2)
    assert not target.exists()


def test_another_umask(service: Service, folder: Path, target: Path) -> None:
    """A snapshot that only its owner may read is not mounted where others are to read it."""
    arguments = ["deps", "uv", "--wait", "--target", str(target), *UV_ARGUMENTS]
    for umask, mode in ((0o077, 0o600), (0o022, 0o644)):
        process = service.start(*arguments, umask=umask)
        assert (process.communicate()[1].count("miss"), process.returncode) == (1, 0)
        assert (target / "heavy/__init__.py").stat().st_mode & 0o777 == mode
        shutil.rmtree(target)
    assert len(names(folder)) == 2


def test_a_file_that_changes_while_it_is_installed_from(
    service: Service, folder: Path, target: Path, jobs: list[Job]
) -> None:
    """It is unknown which of the two versions was read, so nothing is kept, and no snapshot is taken for another."""
    before = (folder / "requirements.txt").read_text()
    script = folder / "install.sh"
    script.write_text(f"set -e\necho '# more' >> requirements.txt\n{' '.join(uv('--target', target, *ARGUMENTS))}\n")
    start = ("run", "--wait", "--target", target, "--input", "requirements.txt")
    told = deps(service, *start, "--owner", jobs[0].pid, "--", "sh", script)
    assert "not published: what it is installed from was changed meanwhile" in told
    assert value(sys.executable, target) == "15"
    assert names(folder) == []
    (folder / "requirements.txt").write_text(before)
    jobs[0].end()
    assert "miss" in deps(service, *start, "--", "sh", script)
