"""The machine that measures: its facts, its caches, and the folder that a benchmark works in."""

from __future__ import annotations

import compileall
import fcntl
import mmap
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import stripefs
from bench.harness import ROOT, BenchError
from bench.harness.data import GIB, MIB
from bench.harness.programs import output, run

__all__ = [
    "CACHE",
    "cold",
    "compile_programs",
    "disk_read_ahead",
    "drop_caches",
    "first_touch",
    "load",
    "locked",
    "machine",
    "packages",
    "remove_mounts",
    "remove_tree",
    "timed",
    "version",
    "work_folder",
]

CACHE = Path("~/.cache/bootseer").expanduser()
"""The folder of data that benchmarks make or fetch once."""

_PACKAGES = ("hdfs-native", "pyfuse3", "trio", "pyarrow", "numpy", "safetensors")


# -- facts -------------------------------------------------------------------------------------------------------------


def version() -> str:
    """The version of the package, with the commit where the checkout tells it."""
    own = stripefs.__version__  # the metadata of an installation in place are as old as that installation
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return own
    return f"{own} ({commit})"


def machine() -> dict[str, Any]:
    """Facts of the machine for a document, as JSON values: sizes in MiB, the date in UTC, load as `load` has it."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "first_touch_s_per_gib": round(first_touch(), 2),
        "load_15min": load(),
        "python": platform.python_version(),
    }


def first_touch() -> float:
    """Seconds it takes to touch a GiB of fresh memory page by page.

    About 0.1 to 0.4 where memory is there. Where a hypervisor takes free memory back it is several times that, and
    whoever fills a page cache or a large buffer pays for it, while a client that throws its bytes away does not.
    """
    with mmap.mmap(-1, GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        begin = time.monotonic()
        for page in range(0, GIB, mmap.PAGESIZE):
            memory[page] = 1
        return time.monotonic() - begin


def load() -> float:
    """The kernel's average of 15 minutes."""
    return round(os.getloadavg()[2], 2)


def packages() -> dict[str, str]:
    """Versions of the packages that matter, of those that are there."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = package_version(name)
        except PackageNotFoundError:
            continue
    return found


def disk_read_ahead(path: Path) -> int:
    """KiB, of the disk that `path` is on; 0 where the kernel names none, as in an overlay."""
    number = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    disk = block.parent if (block / "partition").exists() else block
    told = disk / "queue/read_ahead_kb"
    return int(told.read_text()) if told.exists() else 0


def _cpu_model() -> str:
    """As the kernel names the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


# -- caches and clocks -------------------------------------------------------------------------------------------------


def drop_caches() -> None:
    """Empty the page cache of this machine, and the caches of names and inodes."""
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def cold() -> None:
    """Write back what is dirty, then drop all caches."""
    os.sync()
    drop_caches()


def timed(*command: str | Path) -> float:
    """Seconds that `command` took. Raises BenchError where it fails."""
    begin = time.monotonic()
    run(*command)
    return time.monotonic() - begin


# -- work folders ------------------------------------------------------------------------------------------------------


@contextmanager
def work_folder(work: Path, tidy: Callable[[Path], None]) -> Iterator[ExitStack]:
    """Hold the work folder, with nothing in it that an earlier benchmark left, and with byte code of what is measured.

    tidy: takes away what a benchmark leaves, before the block and after all that the block's stack holds. Raises
    BenchError where another benchmark has the folder.
    """
    with locked(work), ExitStack() as stack:
        tidy(work)
        compile_programs()
        stack.callback(tidy, work)
        yield stack


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


def compile_programs() -> None:
    """Make byte code of what is measured, as an installation does; a checkout may have none, or old."""
    for package in ("stripefs", "imagefs"):
        compileall.compile_dir(ROOT / package, quiet=2)


def remove_tree(folder: Path) -> None:
    """Remove a folder that may hold a root file system, in this file system only: nothing that is mounted below it."""
    if folder.exists():
        run("rm", "-rf", "--one-file-system", "--", folder)


def remove_mounts(work: Path) -> None:
    """Unmount everything below the work folder, and detach the loop devices of its files."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for where in sorted((place for place in mounted if place.startswith(f"{work}/")), reverse=True):
        run("umount", "--lazy", where)
    for line in output("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
        name, _, file = line.partition(" ")
        if file.strip().startswith(f"{work}/"):
            run("losetup", "--detach", name)
