"""Daemons, folders of jobs, what is installed and where, and jobs that use what is mounted."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deps.sharing import SETTINGS, visit
from tests.support.deps.requests import make
from tests.support.deps.starting import Starts
from tests.support.deps.wheels import wheel
from tests.tools.imagefs_daemon import Service


@pytest.fixture(scope="module")
def _host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with contextlib.closing(Service(tmp_path_factory.mktemp("host"), **SETTINGS)) as made:
        yield made


@pytest.fixture
def service(_host: Service, tmp_path: Path) -> Iterator[Service]:
    """One daemon for all tests of a module."""
    with visit(_host, tmp_path) as guest:
        yield guest


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Service]:
    """A daemon of this test's own, which does not run yet."""
    with contextlib.closing(Service(tmp_path, **SETTINGS)) as made:
        yield made


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with the package `heavy`, whose bytes no other test has."""
    files: dict[str, str | bytes] = {
        "heavy/__init__.py": "VALUE = 7\n",
        "heavy/data.bin": random.Random(str(tmp_path)).randbytes(320_000),
    }
    wheel(tmp_path / "wheels", "heavy", files, programs={"weigh": "heavy:main"})
    return tmp_path / "wheels"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deps"


@pytest.fixture
def starts(service: Service, store: Path, wheels: Path, target: Path) -> Starts:
    return Starts(service, store, wheels, target)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder of a job whose key is asked for."""
    return make(tmp_path / "job-1")


@pytest.fixture
def folder(tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a job: a requirements file and wheels. The environment names the store."""
    folder = tmp_path / "job"
    wheel(folder / "wheels", "heavy", {"heavy/__init__.py": "VALUE = 7\n"}, requires=["light"])
    wheel(folder / "wheels", "light", {"light/__init__.py": "VALUE = 8\n"}, programs={"weigh": "light:main"})
    (folder / "requirements.txt").write_text("heavy==1.0\nlight==1.0\n")
    service.environment |= {
        "IMAGEFS_STORE": str(tmp_path / "store"),
        "PIP_NO_INDEX": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_CACHE": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    monkeypatch.chdir(folder)
    return folder


class Job:
    """A process that lives until it is told to end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        self.pid = self._process.pid

    def end(self) -> None:
        self._process.communicate()

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
