"""Starts of jobs on hosts of a test's own, each by the program `tests.support.deps.started`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stripefs.fuse import kernel
from tests.support.checkout import CHECKOUT
from tests.support.deps.wheels import uv
from tests.tools.imagefs_daemon import PATIENCE, Service

__all__ = ["away", "by_uv", "done", "is_mounted", "start"]


def start(
    service: Service, store: Path | str, target: Path, command: Sequence[str], *, user: int = 0, **more: Any
) -> subprocess.Popen[str]:
    """A start, under way. user: the process that uses it, this one unless given."""
    job = {
        "settings": service.settings._asdict(),
        "store": str(store),
        "target": str(target),
        "command": list(command),
        "user": user or os.getpid(),
        **more,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.deps.started"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**service.environment, "PIP_ROOT_USER_ACTION": "ignore"},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(job))
    process.stdin.flush()
    process.stdin.close()
    process.stdin = None
    return process


def done(service: Service, store: Path | str, target: Path, command: Sequence[str], **more: Any) -> tuple[int, str]:
    """The exit status and the lines of a start."""
    process = start(service, store, target, command, **more)
    _, told = process.communicate(timeout=PATIENCE * 4)
    return process.returncode, told


def by_uv(wheels: Path, target: Path) -> list[str]:
    """The command that installs the package `heavy`. pip takes twenty times as long, and no start depends on which."""
    return uv("--no-cache", "--python", sys.executable, "--target", target, "--find-links", wheels, "heavy")


def away(target: Path) -> None:
    """As on a host that has nothing yet."""
    shutil.rmtree(target)


def is_mounted(target: Path) -> bool:
    return kernel.find_mount(str(target)) is not None
