"""Writing through real mounts of a local directory."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.mount.mounted import Mounts

pytestmark = pytest.mark.mount


def _shell(command: str, **names: object) -> str:
    environment = {**os.environ, **{name: str(value) for name, value in names.items()}}
    done = subprocess.run(["sh", "-ec", command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_common_commands(mounts: Mounts) -> None:
    mounted = mounts.mount(rw=True)
    m, s = mounted.path, mounts.source
    _shell('echo hello > "$M/greeting"', M=m)
    assert (s / "greeting").read_text() == (m / "greeting").read_text() == "hello\n"
