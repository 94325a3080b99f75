"""What benchmarks do to the machine: empty its caches, time programs, hold and clear a work folder."""

from __future__ import annotations

import compileall
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import ROOT, BenchError, drop_caches
from bench.programs import output, run

__all__ = ["cold", "compile_programs", "locked", "remove_mounts", "remove_tree", "timed"]


def timed(*command: str | Path) -> float:
    """Seconds that `command` took. Raises BenchError where it fails."""
    begin = time.monotonic()
    run(*command)
    return time.monotonic() - begin


def cold() -> None:
    """Write back what is dirty, then empty the page cache and the caches of names and inodes."""
    os.sync()
    drop_caches()


def compile_programs() -> None:
    """Make byte code of what is measured, as an installation does; a checkout may have none, or old."""
    for package in ("stripefs", "imagefs"):
        compileall.compile_dir(ROOT / package, quiet=2)


def remove_tree(folder: Path) -> None:
    """Remove a folder that may hold a root file system, in this file system only: nothing that is mounted below it."""
    if folder.exists():
        run("rm", "-rf", "--one-file-system", "--", folder)


def remove_mounts(work: Path) -> None:
    """Unmount what lies below the work folder, whoever left it, and let go of the loop devices of its files."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for where in sorted((place for place in mounted if place.startswith(f"{work}/")), reverse=True):
        run("umount", "--lazy", where)
    for line in output("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
        name, _, file = line.partition(" ")
        if file.strip().startswith(f"{work}/"):
            run("losetup", "--detach", name)


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Hold the work folder. Raises BenchError where another benchmark has it."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as holder:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchError(f"another benchmark is running with {work}: wait for it, or give --work") from error
        yield
