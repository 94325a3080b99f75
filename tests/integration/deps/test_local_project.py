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
from tests.support.deps.wheels import UV
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]

BACKEND = """
import base64, hashlib, os, pathlib, subprocess, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open("../builds", "a") as file:
        file.write("x")
    version = subprocess.run(["git", "describe", "--tags"], capture_output=True, text=True).stdout.strip()
    pathlib.Path("build").mkdir(exist_ok=True)
    pathlib.Path("build/left").write_text(version)
    name, info, rows = f"own-{version}-py3-none-any.whl", f"own-{version}.dist-info", ""
    files = {name: pathlib.Path(name).read_bytes() for name in ("own.py", "shared.py")}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: own\\nVersion: {version}\\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows += f"{path},sha256={digest},{len(data)}\\n"
    files[f"{info}/RECORD"] = f"{rows}{info}/RECORD,,\\n".encode()
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return name
"""

SETTINGS = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n\n[tool.other]\nx = 1\n'


class Project:
    """Its version is a git tag, and one of its modules a link that leads out of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "own"
        self.path.mkdir()
        self.shared, self._builds = folder / "shared.py", folder / "builds"
        (self.path / "pyproject.toml").write_text(SETTINGS)
        (self.path / "backend.py").write_text(BACKEND)
        (self.path / "own.py").write_text("x = 1\n")
        self.shared.write_text("y = 1\n")
        (self.path / "shared.py").symlink_to("../shared.py")
        (folder / "requirements.txt").write_text("./own\n")
        self._git("init", "--quiet")
        self._git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "--allow-empty", "--message", "x")
        self.tag("1.0")

    def tag(self, version: str) -> None:
        self._git("tag", "--delete", *self._git("tag").split())
        self._git("tag", version)

    def builds(self) -> int:
        """The number of builds since the last call."""
        count = len(self._builds.read_text()) if self._builds.exists() else 0
        self._builds.unlink(missing_ok=True)
        return count

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.path, capture_output=True, text=True, check=False).stdout


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


@pytest.mark.parametrize(
    ("form", "change"),
    [("pip", lambda project: project.tag("2.0")), ("uv", lambda project: project.shared.write_text("y = 2\n"))],
)
def test_a_project_is_built_once_and_hits_while_it_gives_the_same(
    service: Service, folder: Path, target: Path, form: str, change: Callable[[Project], object]
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
    change(project)
    fresh = plain(service, folder, target, form)
    project.builds()
    assert published(start())
    assert len(list(names(folder))) == 2
