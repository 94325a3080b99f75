"""A daemon of a test's own, and jobs that use what it mounts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imagefs.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with contextlib.closing(Service(tmp_path, background_rate="0", io_timeout="10")) as made:
        yield made


class Job:
    """A process that lives until it is told to end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pid = self._process.pid

    def end(self) -> None:
        self._process.communicate(b"\n")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Three of them."""
    made = [Job() for _ in range(3)]
    yield made
    for job in made:
        job.kill()
