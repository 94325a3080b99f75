"""Leftovers of tests on the machine, told apart from processes and mounts of others.

Every process that a test starts inherits `BOOTSEER_TESTED_BY` and so carries the pid of this pytest in its environment;
mounts of a test lie below this pytest's temporary folder; HDFS instances have the pid in their name.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import processes

__all__ = ["MARK", "leaks"]

MARK = "BOOTSEER_TESTED_BY"


def leaks(temporary: Path, patience: float) -> list[str]:
    """One line for each thing that is still there after `patience` seconds: what is just ending gets to end."""
    deadline = time.monotonic() + patience
    while found := [*_processes(), *_mounts(temporary), *_networks()]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


def _processes() -> Iterator[str]:
    mark = f"{MARK}={os.getpid()}".encode()
    for pid, environment in processes("environ"):
        if mark in environment:
            with contextlib.suppress(OSError):  # it ended while we looked
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if command := line.decode(errors="replace").strip():
                    yield f"process {pid}: {command[:200]}"


def _mounts(temporary: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mountpoint = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split(" ")[4])
        if Path(mountpoint).is_relative_to(temporary):
            yield f"mount {mountpoint}"


def _networks() -> Iterator[str]:
    """A test's host interface cannot outlive its namespaces: they are the two ends of one link."""
    for entry in Path("/run/netns").glob(f"hdfs-test-{os.getpid()}*"):
        if re.fullmatch(rf"hdfs-test-{os.getpid()}(-.*)?-(nn|dn\d+)", entry.name):
            yield f"network namespace {entry.name}"
