"""A job whose start is `imagefs deps`, by the installed command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.deps.installed import snapshots_in
from tests.tools.imagefs_daemon import Service

__all__ = ["ARGUMENTS", "UV_ARGUMENTS", "anew", "deps", "names", "value"]

ARGUMENTS = ("-r", "requirements.txt", "--find-links", "wheels")
UV_ARGUMENTS = (*ARGUMENTS, "--no-index", "--offline")
"""For `imagefs deps uv`: where no test asks for pip, as that takes twenty times as long."""


def deps(service: Service, *arguments: object, code: int = 0) -> str:
    """The standard error of `imagefs deps ARGUMENTS`."""
    done = service.run("deps", *map(str, arguments))
    assert done.returncode == code, done.stderr + service.log()
    return done.stderr


def anew(service: Service, target: Path) -> None:
    """As on a host that has nothing of it."""
    if "mounted" in service.run("umount", str(target)).stderr or target.exists():
        shutil.rmtree(target, ignore_errors=True)


def names(folder: Path) -> list[str]:
    """The snapshots in the store of a job."""
    return list(snapshots_in(folder.parent / "store").stored())


def value(python: Path | str, path: Path | str = "") -> str:
    """The output of a job that imports both packages."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = [python, "-P", "-c", "import heavy, light; print(heavy.VALUE + light.VALUE)"]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip()
