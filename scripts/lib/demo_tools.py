"""Helpers of both parts of the demonstration: commands, lines, and a folder that is removed with all mounts in it."""

from __future__ import annotations

import ctypes
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

from bench.harness.processes import tree
from imagefs.mounts import unmount_topmost
from stripefs.errors import MountError
from stripefs.fuse import kernel

__all__ = ["INTERRUPTS", "PROGRAMS", "Failed", "command", "say", "temporary_folder"]

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROGRAMS = Path(sys.executable).parent

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_ENDS_WITHIN = 20.0


class Failed(Exception):
    """One line that says what went wrong."""


def say(what: str, text: str) -> None:
    print(f"{what:11} {text}", flush=True)


def command(*words: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program; its output. Ctrl-C reaches only this process, which then kills it. Raises CalledProcessError."""
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
    if os.geteuid():
        os.environ["XDG_RUNTIME_DIR"] = str(folder)  # else what our mounts keep there would stay
    _adopt(True)
    try:
        yield folder
    finally:
        old = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
        _empty(folder)
        _adopt(False)
        shutil.rmtree(folder)
        os.environ.clear()
        os.environ.update(before)
        for number, handler in old.items():
            signal.signal(number, handler)


def _adopt(yes: bool) -> None:
    """Set if supervisors, which leave the command that started them, become our children and not init's."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _empty(folder: Path) -> None:
    """Unmount and end whatever is left. In good order there is nothing, or what is just about to end."""
    began = time.monotonic()
    while _children():
        _unmount(folder)
        late = time.monotonic() - began > _ENDS_WITHIN
        for pid in tree(os.getpid())[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)
    _unmount(folder)


def _children() -> bool:
    """True if children are left; those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _unmount(folder: Path) -> None:
    for mount in reversed(kernel.mounts()):
        if Path(mount.path).is_relative_to(folder):
            with suppress(MountError):  # it went by itself
                unmount_topmost(mount.path, lazy=True)
