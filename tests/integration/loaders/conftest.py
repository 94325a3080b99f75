"""torch and the loaders of checkpoints, which only programs of their own import, and mounts for these."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.harness.peers import TORCH
from tests.support.checkout import CHECKOUT
from tests.tools.mounts import Mounts

Program = Callable[..., str]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with contextlib.closing(Mounts(tmp_path)) as made:
        yield made


@pytest.fixture(scope="session")
def program() -> Program:
    """Runs a program with torch, given its text and arguments, and answers what it prints."""
    assert TORCH.exists(), "torch is not set up: run ./scripts/test, which does it"

    def run(text: str, *arguments: object) -> str:
        environment = os.environ | {"PYTHONPATH": str(TORCH)}
        done = subprocess.run(
            [sys.executable, "-c", text, *map(str, arguments)],
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def layout() -> str:
    """tests/extra has the other one."""
    return "striped"
