"""Programs that supervisors of earlier versions start by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["worker", "keeper", "daemon"])
def test_a_program_under_its_earlier_name_begins(name: str) -> None:
    command = [sys.executable, "-P", "-m", f"stripefs.mount.{name}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, os.path.join("stripefs", "fuse") in done.stderr) == (1, True)  # it lacks its arguments
