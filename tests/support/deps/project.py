"""A project of a host that brings its build backend along, as most that are installed by their path."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.checkout import CHECKOUT

__all__ = ["SETTINGS", "Project"]

_BACKEND = f"""
import pathlib, subprocess, sys
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.support.deps.wheels import wheel
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open("../builds", "a") as file:
        file.write("x")
    version = subprocess.run(["git", "describe", "--tags"], capture_output=True, text=True).stdout.strip()
    pathlib.Path("build").mkdir(exist_ok=True)
    pathlib.Path("build/left").write_text(version)
    files = {{name: pathlib.Path(name).read_bytes() for name in ("own.py", "shared.py")}}
    return wheel(pathlib.Path(folder), "own", files, version=version).name
"""

SETTINGS = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n\n[tool.other]\nx = 1\n'


class Project:
    """In a folder `own`. Its version is a git tag, and one of its modules a link that leads out of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "own"
        self.path.mkdir()
        self.shared, self._builds = folder / "shared.py", folder / "builds"
        (self.path / "pyproject.toml").write_text(SETTINGS)
        (self.path / "backend.py").write_text(_BACKEND)
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
