"""Code of a version in a folder of its own, for programs to run from, replaced in place as a package upgrade does."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.checkout import CHECKOUT

__all__ = ["InstalledCode"]

_PACKAGES = ("stripefs", "imagefs")


class InstalledCode:
    """A folder that programs import both packages from, before those of this checkout.

    The code is that of a commit, or of this checkout's working tree with a version of its own, so that `status` tells
    it from others. Both versions run on the packages of this `.venv`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(folder)}
        folder.mkdir()

    def install_commit(self, commit: str) -> None:
        """Replace the code by that of `commit`, which the repository must have: a shallow clone lacks it."""
        made = subprocess.run(["git", "archive", commit, *_PACKAGES], cwd=CHECKOUT, capture_output=True, check=False)
        assert made.returncode == 0, f"{made.stderr.decode()}: git fetch --unshallow"
        self._remove()
        with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
            archive.extractall(self.folder, filter="data")

    def install_checkout(self, version: str) -> None:
        """Replace the code by that of this checkout, whose `status` says `version`."""
        self._remove()
        for package in _PACKAGES:
            shutil.copytree(CHECKOUT / package, self.folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        named = self.folder / "stripefs" / "__init__.py"
        text = named.read_text()
        changed = "\n".join(
            f'__version__ = "{version}"' if line.startswith("__version__") else line for line in text.splitlines()
        )
        assert changed != text.rstrip("\n")
        named.write_text(changed + "\n")

    def rename_module(self, package: str, name: str, renamed: str) -> None:
        """Give a module another name, wherever the code imports it; a name of no other thing."""
        (self.folder / package.replace(".", "/") / f"{name}.py").rename(
            self.folder / package.replace(".", "/") / f"{renamed}.py"
        )
        for path in self.folder.rglob("*.py"):
            text = path.read_text()
            changed = re.sub(rf"\b{package}\.{name}\b", f"{package}.{renamed}", text)
            changed = changed.replace(f"from {package} import {name}\n", f"from {package} import {renamed} as {name}\n")
            if changed != text:
                path.write_text(changed)

    def _remove(self) -> None:
        for package in _PACKAGES:
            shutil.rmtree(self.folder / package, ignore_errors=True)

    def command(self, package: str, *words: str) -> Sequence[str]:
        """The command line of `stripefs WORDS` or `imagefs WORDS`."""
        code = f"import sys; from {package}.cli.main import run; sys.exit(run())"
        return [sys.executable, "-P", "-c", code, *words]
