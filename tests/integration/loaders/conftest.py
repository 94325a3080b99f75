"""torch and the loaders of checkpoints, which only programs of their own import, and mounts for these."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from bench.harness.peers import TORCH
from tests.integration.mount.conftest import mounts
from tests.support.checkout import CHECKOUT

__all__ = ["Program", "mounts", "program"]

Program = Callable[..., str]


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
