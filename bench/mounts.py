"""Mounts under measurement: stripefs with one transport, rclone with a number of chunk streams.

Each run gets a fresh mount in a folder of its own, which is gone again afterwards whatever happened. Both are started
in the foreground as our own child, so their processes can be measured and ended by id.
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
from pathlib import Path

from bench.cluster import BenchError, Cluster
from bench.programs import inside

__all__ = ["Mount", "rclone", "stripefs"]

_READY_WITHIN = 60.0
_ENDS_WITHIN = 15.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted cluster: `folder` shows its /bench, `pid` is the root of the processes that serve it."""

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
) -> Iterator[Mount]:
    """`stripefs mount` with this transport and memory budget in bytes, everything else as users get it.

    `words`: further arguments. conf: a folder of site files other than the cluster's own. namespace: of the network
    that it is in, "" for that of this process.
    """
    command = [*inside(namespace), str(Path(sys.executable).with_name("stripefs")), "mount", "--foreground"]
    command += ["--hdfs-transport", transport, "--memory", str(budget), "--hdfs-user", "root"]
    command += [*words, "--hadoop-conf", conf or cluster.conf, f"{cluster.url}/bench"]
    with _mounted(command, environment) as mount:
        yield mount


@contextmanager
def rclone(
    cluster: Cluster, binary: Path, streams: int, *, writable: bool = False, cache: Path | None = None
) -> Iterator[Mount]:
    """`rclone mount` with `streams` chunk streams of 8 MiB, a block each: the best size of 4, 8 and 16 MiB here.

    cache: the folder where it keeps what it reads.
    """
    command = [str(binary), "mount", *([] if writable else ["--read-only"])]
    command += ["--vfs-cache-mode", "full", "--cache-dir", str(cache)] if cache else ["--vfs-cache-mode", "off"]
    command += ["--vfs-read-chunk-streams", str(streams), "--vfs-read-chunk-size", "8Mi"]
    command += ["--hdfs-namenode", cluster.url.removeprefix("hdfs://"), "--hdfs-username", "root", ":hdfs:/bench"]
    with _mounted(command, {"RCLONE_CONFIG": "/dev/null"}) as mount:
        yield mount


@contextmanager
def _mounted(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Mount]:
    """Run `command FOLDER` until the folder is a mount that lists; afterwards unmount and end it."""
    with tempfile.TemporaryDirectory(prefix="bench-mount-") as scratch:
        folder, log = Path(scratch, "mnt"), Path(scratch, "log")
        folder.mkdir()
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=os.environ | environment,
            )
        try:
            _await_mount(process, folder, log)
            yield Mount(folder, process.pid)
        finally:
            _end(process, folder)


def _await_mount(process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN
    while not _answers(folder):
        if process.poll() is not None or time.monotonic() > deadline:
            words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise BenchError(f"{Path(str(process.args[0])).name} did not mount: {words[-1]}")  # type: ignore[index]  # a list, as given above
        time.sleep(0.02)


def _answers(folder: Path) -> bool:
    """Whether the mount is there and lists its files; an error may only mean that it is just coming up."""
    try:
        return os.path.ismount(folder) and any(folder.iterdir())
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Unmount the polite way, and when that does not end it, lazily and with SIGKILL."""
    umount = shutil.which("umount") or "/bin/umount"
    subprocess.run([umount, folder], capture_output=True, check=False)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDS_WITHIN)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN)
    if process.poll() is None:
        process.kill()
        process.wait()
    if os.path.ismount(folder):
        subprocess.run([umount, "--lazy", folder], capture_output=True, check=False)
