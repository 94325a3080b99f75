"""A project of the host is built once for a miss, and what is kept of it is what a fresh installation gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.integration.deps.commanding import deps, names
from tests.support.deps.project import Project
from tests.support.deps.wheels import UV
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]


def contents(target: Path) -> dict[str, str]:
    """The installed files, without bytecode and the notes of uv on time and origin."""
    found = {}
    for path in target.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and path.name not in (".lock", "uv_cache.json", "RECORD"):
            found[str(path.relative_to(target))] = path.read_text()
    return found


def plain(service: Service, folder: Path, target: Path, form: str) -> dict[str, str]:
    """The same by the installer alone, on a host that has nothing of it."""
    program: Sequence[str] = ["-m", "pip"] if form == "pip" else []
    words = ["--quiet", "install"] if form == "pip" else ["pip", "install", "--quiet", "--python", sys.executable]
    environment = {**os.environ, **service.environment, "UV_NO_CACHE": "1", "PIP_COMPILE": "0"}
    subprocess.run(
        [sys.executable if form == "pip" else UV, *program, *words, "--target", str(target), "-r", "requirements.txt"],
        cwd=folder,
        env=environment,
        check=True,
    )
    found = contents(target)
    shutil.rmtree(target)
    return found


def published(told: str) -> bool:
    return "miss" in told and "published" in told and " not published" not in told


CHANGES: list[Callable[[Project], object]] = [
    lambda project: project.tag("2.0"),
    lambda project: project.shared.write_text("y = 2\n"),
]


@pytest.mark.parametrize(("form", "changes"), [("pip", []), ("uv", CHANGES)], ids=["pip", "uv"])
def test_a_project_is_built_once_and_hits_while_it_gives_the_same(
    service: Service, folder: Path, target: Path, form: str, changes: list[Callable[[Project], object]]
) -> None:
    """For the key and the installation together. uv would take what it has built for as long as no time changes."""
    project = Project(folder)
    service.environment |= {"UV_CACHE_DIR": str(folder.parent / "uv-cache")}  # in which uv keeps what it has built

    def start() -> str:
        told = deps(service, form, "--wait", "--target", target, "-r", "requirements.txt")
        assert project.builds() == 1
        assert contents(target) == fresh
        if "mounted" in service.run("umount", str(target)).stderr or target.exists():
            shutil.rmtree(target, ignore_errors=True)
        return told

    fresh = plain(service, folder, target, form)
    project.builds()
    assert published(start())
    assert "mounted at" in start()
    for change in changes:
        change(project)
        fresh = plain(service, folder, target, form)
        project.builds()
        assert published(start())
    assert len(names(folder)) == 1 + len(changes)
