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

__all__ = ["Starts", "away", "is_mounted"]


class Starts:
    """Starts on one host, from one store to one target.

    They install the package `heavy` by uv unless another command is given: pip takes twenty times as long, and no start
    depends on which.
    """

    def __init__(self, service: Service, store: Path | str, wheels: Path, target: Path) -> None:
        self.service, self.store, self.target = service, store, target
        places = ("--target", target, "--find-links", wheels)
        self.install = uv("--no-cache", "--python", sys.executable, *places, "heavy")

    def begin(self, command: Sequence[str] = (), *, user: int = 0, **more: Any) -> subprocess.Popen[str]:
        """A start, under way. user: the process that uses it, this one unless given."""
        job = {
            "settings": self.service.settings._asdict(),
            "store": str(self.store),
            "target": str(self.target),
            "command": list(command or self.install),
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
            env={**self.service.environment, "PIP_ROOT_USER_ACTION": "ignore"},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(job))
        process.stdin.flush()
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, command: Sequence[str] = (), *, code: int = 0, **more: Any) -> str:
        """The lines of a start that ends with this status."""
        process = self.begin(command, **more)
        _, told = process.communicate(timeout=PATIENCE * 4)
        assert process.returncode == code, told
        return told


def away(target: Path) -> None:
    """As on a host that has nothing yet."""
    shutil.rmtree(target)


def is_mounted(target: Path) -> bool:
    return kernel.find_mount(str(target)) is not None
