"""`./scripts/demo job`: a whole job both ways, the table of its stages, and nothing that stays, also after Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.support.checkout import CHECKOUT

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]


def demo(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The demonstration, under way, with its temporary folder below `folder`."""
    return subprocess.Popen(
        [sys.executable, CHECKOUT / "scripts/lib/demo.py", *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(folder: Path) -> list[str]:
    """The remains of a demonstration that has ended."""
    containers = subprocess.run(["runc", "list", "--quiet"], capture_output=True, text=True, check=True).stdout.split()
    mounts = [one.path for one in kernel.mounts() if Path(one.path).is_relative_to(folder)]
    return [*os.listdir(folder), *mounts, *(name for name in containers if name.startswith("bootseer-demo-"))]


def test_a_whole_job_is_shown_with_the_table_of_its_stages(tmp_path: Path) -> None:
    folder, page = tmp_path / "tmp", tmp_path / "report.html"
    folder.mkdir()
    process = demo(folder, "job", "--html", str(page))
    said, errors = process.communicate(timeout=280)
    assert process.returncode == 0, said + errors
    assert re.search(r"^speed-up +[0-9.]+ times, the same bytes: yes$", said, re.MULTILINE), said
    table = said.partition("BEFORE AND AFTER\n")[2].partition("\n\n")[0].splitlines()
    rows = {line.split()[0]: line.split()[1:3] for line in table}
    stages = {"total", "image", "container", "dependencies", "imports", "model", "checkpoint", "first_step"}
    assert stages <= rows.keys(), said
    assert all(float(seconds) >= 0 for stage in stages for seconds in rows[stage])
    assert "<html" in page.read_text()
    assert left(folder) == []


def test_an_interrupted_job_leaves_nothing(tmp_path: Path) -> None:
    process = demo(tmp_path, "job")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("fleet"):  # the start of today begins
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert left(tmp_path) == []
