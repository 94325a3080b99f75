"""Running programs, page caches, and the folder that the image benchmark keeps its data in."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import BenchError, Say, drop_caches
from bench.programs import output, run

__all__ = ["WORK", "BenchError", "Say", "chroot", "cold", "locked", "output", "remove_tree", "run", "timed"]

WORK = Path("~/.cache/bootseer/bench-image").expanduser()

_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def timed(*command: str | Path) -> float:
    """Seconds that `command` took. Raises BenchError where it fails."""
    begin = time.monotonic()
    run(*command)
    return time.monotonic() - begin


def chroot(root: Path, *command: str) -> None:
    """Run `command` in the tree below `root`, with a bare environment."""
    bare = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    bare |= {name: os.environ[name] for name in _PROXIES if name in os.environ}
    run("chroot", root, *command, env=bare)


def cold() -> None:
    """Write back what is dirty, then empty the page cache and the caches of names and inodes."""
    os.sync()
    drop_caches()


def remove_tree(folder: Path) -> None:
    """Remove a folder that may hold a root file system, in this file system only: nothing that is mounted below it."""
    if folder.exists():
        run("rm", "-rf", "--one-file-system", "--", folder)


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Hold the work folder. Raises BenchError where another benchmark has it."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as holder:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchError(f"another image benchmark is running with {work}: wait for it, or give --work") from error
        yield
