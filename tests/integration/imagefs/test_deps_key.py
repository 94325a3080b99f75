"""The key of one request on several hosts, by the installed command, each in namespaces of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.commands import program

pytestmark = pytest.mark.root


def key_on(host: str, folder: Path, requirements: str, *flags: str, **environ: str) -> str:
    """The output of `imagefs deps key` on a host of that name, for a job in `folder`."""
    (folder / "home").mkdir(parents=True)
    (folder / "requirements.txt").write_text(requirements)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "IMAGEFS_"))}
    install = [sys.executable, "-m", "pip", "install", "--target", "/opt/deps", "-r", str(folder / "requirements.txt")]
    command = [str(program("imagefs")), "deps", "key", "--target", "/opt/deps", *flags, "--", *install]
    # proc of its own, so that process ids differ as well
    unshared = [
        "unshare",
        "--uts",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        f'hostname {host} && exec "$@"',
        "sh",
    ]
    done = subprocess.run(
        [*unshared, *command],
        cwd=folder,
        env={**kept, "HOME": str(folder / "home"), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    told: str = done.stdout.strip()
    return told


def test_two_hosts_have_one_key_and_one_byte_makes_another(tmp_path: Path) -> None:
    pins = f"numpy==1.26.4 --hash=sha256:{'ab' * 32}\n--index-url https://user:{{}}@index.example/simple\n"
    first = key_on("node-1", tmp_path / "job-1", pins.format("old"), HOSTNAME="node-1", RANK="0", SLURM_JOB_ID="7")
    second = key_on("node-2", tmp_path / "b/job-2", pins.format("new"), HOSTNAME="node-2", RANK="9", TZ="Asia/Tokyo")
    other = key_on("node-3", tmp_path / "job-3", pins.format("old").replace("26.4", "26.5"))
    level = key_on("node-4", tmp_path / "job-4", pins.format("old"), "--cpu-level", "x86-64-v1", "--salt", "1")
    assert len(first) == 64
    assert first == second
    assert len({first, other, level}) == 3
