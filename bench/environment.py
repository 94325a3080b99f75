"""The facts that a result cannot be read without: machine, versions, cluster, sizes."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from bench.cluster import ROOT, Cluster
from bench.data import GIB, MIB
from bench.peers import RCLONE_VERSION
from bench.plan import CAPPED, Scale

__all__ = ["cpu_model", "disk_read_ahead", "environment", "first_touch", "machine", "packages", "version"]

_PACKAGES = ("hdfs-native", "pyfuse3", "trio", "pyarrow", "numpy", "safetensors")


def version() -> str:
    """The version of the package, with the commit where the checkout tells it."""
    commit = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    own = package_version("bootseer")
    return f"{own} ({commit})" if commit else own


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


def environment(cluster: Cluster, scale: Scale, rounds: int, touch: float) -> dict[str, Any]:
    """Facts as JSON values; sizes in MiB, rates in MB/s, load as the kernel's average of 15 minutes.

    `touch` is what `first_touch` answered before the first run.
    """
    return {
        **machine(touch),
        "packages": packages(),
        "hadoop": "3.4.2",
        "rclone": RCLONE_VERSION if scale.rclone else None,
        "datanodes": len(cluster.datanodes),
        "rate_mb_s": CAPPED / 1e6,
        "file_mib": scale.size // MIB,
        "budget_mib": scale.budget // MIB,
        "rounds": rounds,
        "quick": scale.quick,
    }


def machine(touch: float) -> dict[str, Any]:
    """Facts of the machine, for any benchmark's document; `touch` as `first_touch` answered it."""
    return {
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "first_touch_s_per_gib": round(touch, 2),
        "load_15min": round(os.getloadavg()[2], 2),
        "python": platform.python_version(),
    }


def packages() -> dict[str, str]:
    """Versions of the packages that matter, of those that are there."""
    return {name: found for name in _PACKAGES if (found := _package(name))}


def _package(name: str) -> str:
    try:
        return package_version(name)
    except PackageNotFoundError:
        return ""


def disk_read_ahead(path: Path) -> int:
    """KiB, of the disk that `path` is on; 0 where the kernel names none, as in an overlay."""
    number = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    disk = block.parent if (block / "partition").exists() else block
    told = disk / "queue/read_ahead_kb"
    return int(told.read_text()) if told.exists() else 0


def cpu_model() -> str:
    """As the kernel names the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
