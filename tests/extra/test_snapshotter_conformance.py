"""containerd's own tests of snapshotters, on processes of ours that serve a socket each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.tools.containerd import gobuild
from tests.tools.imagefs_daemon import IMAGEFS

CASES = 21
"""Of the suite in the version of containerd that conformance/go.mod names."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose path is short enough for the sockets that the suite's folders hold."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
        for mount in reversed(kernel.mounts()):  # of a case that failed
            if Path(mount.path).is_relative_to(made):
                kernel.unmount(mount.path, kernel.MNT_DETACH)


def test_all_cases_pass(folder: Path) -> None:
    environment = {
        **os.environ,
        "SNAPSHOTTER": json.dumps([*IMAGEFS, "snapshotter"]),
        "IMAGEFS_CACHE": str(folder / "cache"),
        "IMAGEFS_RUNTIME": str(folder / "run"),
        "TMPDIR": str(folder),
    }
    command = [str(gobuild.conformance()), "-test.v", "-test.root"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    told = "\n".join(line[:300] for line in done.stdout.splitlines() if "log_hook.go" not in line)
    assert done.returncode == 0, told
    assert re.findall(r"^ +--- (\w+): TestSnapshotter/", done.stdout, re.MULTILINE) == ["PASS"] * CASES, told
