"""Mounts under measurement: stripefs with one transport, rclone with a number of chunk streams.

Each run gets a fresh mount in a folder of its own, which is gone again afterwards whatever happened. Both are started
in the foreground as our own child, so their processes can be measured and ended by id. Either can be given a limit of
memory: a cgroup of its own, and settings with which the program stays below it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.harness import BenchError
from bench.harness.cluster import Cluster
from bench.harness.data import MIB
from bench.harness.programs import inside, service

__all__ = ["BESIDE_BUFFERS", "Mount", "memory_limit", "mounted", "rclone", "stripefs"]

BESIDE_BUFFERS = 150 * MIB
"""Bytes of a limit that are left to a program for all but its buffers: as far as stripefs may go past its budget."""

_ENDS_WITHIN = 15.0
_CGROUPS = Path("/sys/fs/cgroup")
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Mount:
    """`folder` shows the files, those of a cluster its /bench; `pid` is the root of the processes that serve it."""

    folder: Path
    pid: int


@contextmanager
def stripefs(
    cluster: Cluster,
    transport: str,
    budget: int,
    environment: Mapping[str, str],
    *words: str,
    conf: str = "",
    namespace: str = "",
    limit: int = 0,
) -> Iterator[Mount]:
    """`stripefs mount` with this transport and memory budget in bytes, everything else as users get it.

    `words`: further arguments. conf: a folder of site files other than the cluster's own. namespace: of the network
    that it is in, "" for that of this process. limit: bytes of memory that all its processes have together, 0 for no
    limit; the budget is then what that leaves for buffers.
    """
    budget = limit - BESIDE_BUFFERS if limit else budget
    command = [*inside(namespace), str(Path(sys.executable).with_name("stripefs")), "mount", "--foreground"]
    command += ["--hdfs-transport", transport, "--memory", str(budget), "--hdfs-user", "root"]
    command += [*words, "--hadoop-conf", conf or cluster.conf, f"{cluster.url}/bench"]
    with memory_limit(limit) as bounded, mounted("stripefs", [*bounded, *command], environment) as mount:
        yield mount


@contextmanager
def rclone(
    cluster: Cluster,
    binary: Path,
    streams: int,
    *,
    writable: bool = False,
    cache: Path | None = None,
    limit: int = 0,
) -> Iterator[Mount]:
    """`rclone mount` with `streams` chunk streams of 8 MiB, a block each: the best size of 4, 8 and 16 MiB here.

    cache: the folder where it keeps what it reads. limit: bytes of memory that it has, 0 for no limit; its buffers, and
    the heap at which Go collects garbage, are then bounded by what `stripefs` has for buffers at the same limit.
    """
    command = [str(binary), "mount", *([] if writable else ["--read-only"])]
    command += ["--vfs-cache-mode", "full", "--cache-dir", str(cache)] if cache else ["--vfs-cache-mode", "off"]
    command += ["--vfs-read-chunk-streams", str(streams), "--vfs-read-chunk-size", "8Mi"]
    command += ["--hdfs-namenode", cluster.url.removeprefix("hdfs://"), "--hdfs-username", "root"]
    environment = {"RCLONE_CONFIG": "/dev/null"}
    if limit:
        buffers = limit - BESIDE_BUFFERS
        command += ["--max-buffer-memory", f"{buffers}B"]
        environment["GOMEMLIMIT"] = f"{buffers}B"
    with memory_limit(limit) as bounded, mounted("rclone", [*bounded, *command, ":hdfs:/bench"], environment) as mount:
        yield mount


@contextmanager
def memory_limit(limit: int) -> Iterator[list[str]]:
    """The words before a command that run it in a cgroup with at most so many bytes of memory; none for a limit of 0.

    Page cache that the command itself fills counts, and is given up first. Raises BenchError where cgroups cannot be
    made here.
    """
    if not limit:
        yield []
        return
    first = (_CGROUPS / "memory/cgroup.procs").exists()  # version 1
    folder = _CGROUPS / ("memory" if first else ".") / f"bench-{os.getpid()}-{next(_numbers)}"
    try:
        if not first and "memory" not in (_CGROUPS / "cgroup.subtree_control").read_text().split():
            (_CGROUPS / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        if (swap := folder / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")).exists():
            swap.write_text(str(limit if first else 0))
    except OSError as error:
        raise BenchError(f"memory cannot be limited by a cgroup here: {error}") from error
    try:
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        deadline = time.monotonic() + _ENDS_WITHIN
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        folder.rmdir()


@contextmanager
def mounted(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Mount]:
    """Run `command FOLDER` until the folder is a mount that lists; afterwards unmount and end it."""
    with tempfile.TemporaryDirectory(prefix="bench-mount-") as scratch:
        folder, log = Path(scratch, "mnt"), Path(scratch, "log")
        folder.mkdir()
        try:
            with service(name, [*command, folder], log, lambda: _answers(folder), environment) as pid:
                try:
                    yield Mount(folder, pid)
                finally:
                    _unmount(folder, pid)
        finally:
            if os.path.ismount(folder):
                subprocess.run([_umount(), "--lazy", folder], capture_output=True, check=False)


def _answers(folder: Path) -> bool:
    """True once the mount is there and lists its files; an error may only mean that it is just coming up."""
    try:
        return os.path.ismount(folder) and any(folder.iterdir())
    except OSError:
        return False


def _unmount(folder: Path, pid: int) -> None:
    """Unmount, and wait for the end of the program, which has its child to wait for."""
    subprocess.run([_umount(), folder], capture_output=True, check=False)
    deadline = time.monotonic() + _ENDS_WITHIN
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.02)


def _umount() -> str:
    return shutil.which("umount") or "/bin/umount"
