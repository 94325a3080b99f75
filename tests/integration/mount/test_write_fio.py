"""fio writes and verifies: every block names its place and its checksum; once more in a second run, past the close.

Its mmap engine is not among the jobs, since it opens the file anew while it is mapped: two writers.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.written_mounts import hidden, unreferenced, writable
from tests.tools.mounts import MIB, Mounts

IN_ORDER = {
    "buffered": ["--rw=write", "--bs=257k", "--size=18m", "--numjobs=2", "--end_fsync=1"],
    "direct": ["--rw=write", "--bs=1m", "--size=18m", "--direct=1", "--fsync=5"],
}
"""Without staging: each job's file is new, and written from its start to its end."""

OUT_OF_ORDER = {
    "random": ["--rw=randwrite", "--bs=4k", "--size=4m", "--verify_backlog=50", "--fsync=200"],
    "laid out before": ["--rw=write", "--bs=128k", "--size=12m", "--create_on_open=0"],
}


def fio(folder: Path, name: str, *options: str) -> None:
    """Run one job in `folder`; it must have moved bytes and found no error."""
    command = [
        "fio",
        f"--name={name.replace(' ', '-')}",
        f"--directory={folder}",
        "--ioengine=psync",
        "--fallocate=none",
    ]
    command += ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--create_on_open=1"]
    command += ["--randseed=7", "--output-format=json", "--thread=1", "--refill_buffers=1", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent, check=False)
    assert done.returncode == 0, (options, done.stdout[-2000:], done.stderr[-2000:])
    jobs = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    assert all(job["error"] == 0 for job in jobs)
    assert sum(job["read"]["io_bytes"] for job in jobs) > 0


@pytest.mark.mount
@pytest.mark.parametrize("layout", ["concat", "striped"])
def test_fio_verifies(mounts: Mounts, layout: str) -> None:
    staging = mounts.folder / "staging"
    source, staged_source = mounts.source, mounts.folder / "staged-source"
    staged_source.mkdir()
    plain = mounts.start(writable(mounts, layout=layout, unit=MIB)).wait_ready()
    staged = mounts.start(writable(mounts, f"file://{staged_source}", layout=layout, unit=MIB, staging=staging))
    staged.wait_ready()
    for mounted, jobs in ((plain, IN_ORDER), (staged, OUT_OF_ORDER)):
        for name, options in jobs.items():
            folder = mounted.path / name
            folder.mkdir()
            fio(folder, "job", *options, "--do_verify=1")
            fio(folder, "job", *options, "--verify_only=1")
        assert mounted.stop() == 0
    for written in (source, staged_source):
        assert hidden(written) == []
        assert unreferenced(written) == set()
    assert os.listdir(staging) == [".stripefs-staging"]
