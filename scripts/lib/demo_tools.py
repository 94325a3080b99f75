"""What both parts of the demonstration need: commands, lines, and a folder that goes with all that lives in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from imagefs.mounts import take_away
from stripefs.errors import MountError
from stripefs.mount import kernel

__all__ = ["INTERRUPTS", "PROGRAMS", "Failed", "command", "say", "temporary_folder"]

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROGRAMS = Path(sys.executable).parent

_MARK = "BOOTSEER_DEMO"
_ENDS_WITHIN = 20.0


class Failed(Exception):
    """One line that says what went wrong."""


def say(what: str, text: str) -> None:
    print(f"{what:11} {text}", flush=True)


def command(*words: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints. Ctrl-C is for us alone; a program that runs then is killed. Raises CalledProcessError."""
    done = subprocess.run(
        words,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        process_group=0,
    )
    return done.stdout


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed in the end, with every process started meanwhile and every mount below it."""
    folder = Path(tempfile.mkdtemp(prefix="bootseer-demo-")).resolve()
    before = dict(os.environ)
    os.environ[_MARK] = str(folder)
    if os.geteuid():
        os.environ["XDG_RUNTIME_DIR"] = str(folder)  # else what our mounts keep there would stay
    try:
        yield folder
    finally:
        old = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
        _empty(folder)
        shutil.rmtree(folder)
        os.environ.clear()
        os.environ.update(before)
        for number, handler in old.items():
            signal.signal(number, handler)


def _empty(folder: Path) -> None:
    """Unmount and end whatever is left. In good order there is nothing, or what is just about to end."""
    began = time.monotonic()
    while True:
        mounts = [mount.path for mount in kernel.mounts() if Path(mount.path).is_relative_to(folder)]
        processes = _processes(folder)
        if not mounts and not processes:
            return
        late = time.monotonic() - began > _ENDS_WITHIN
        for path in reversed(mounts):
            with suppress(MountError):  # it went by itself; else we come here again
                take_away(path, lazy=True)
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)


def _processes(folder: Path) -> list[int]:
    """Those of ours: they have the folder in their environment."""
    mark = os.fsencode(f"{_MARK}={folder}")
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # someone else's, or it ended
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
