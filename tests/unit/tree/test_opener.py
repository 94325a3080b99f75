"""Who holds a file, who has let go of it, and who was killed: seen on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.tree.opener import Fate, Opener, fate, find_opener


def test_ourselves(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        inode = os.fstat(file.fileno()).st_ino
        opener = find_opener(os.getpid())
        assert opener.pid == os.getpid()
        assert fate(opener, {0, inode}) is Fate.HOLDS
        assert fate(Opener(opener.pid, opener.started + 1), {0, inode}) is Fate.GONE  # its number was given to another
    assert fate(opener, {0, inode}) is Fate.GONE
    with open(tmp_path / "f", "rb"):
        assert fate(opener, {0, inode}) is Fate.GONE  # it reads what it has written
    assert opener.pidfd is not None
    assert not opener.pidfd.reaped


@pytest.mark.parametrize(
    ("end", "expected"),
    [(None, Fate.GONE), (signal.SIGKILL, Fate.KILLED), (signal.SIGTERM, Fate.KILLED), (signal.SIGINT, Fate.GONE)],
)
def test_processes_that_end(tmp_path: Path, end: signal.Signals | None, expected: Fate) -> None:
    """They are zombies when they are looked at, as one that is being taken apart: SIGINT is an exception in Python."""
    program = """
import signal, sys, threading
signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
threading.Thread(target=threading.Event().wait, daemon=True).start()
file = open(sys.argv[1], "wb")
print("open", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "f")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        inode = os.stat(tmp_path / "f").st_ino
        opener = find_opener(child.pid)
        assert fate(opener, {0, inode}) is Fate.HOLDS
        if end is None:
            child.stdin.close()
        else:
            child.send_signal(end)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert fate(opener, {0, inode}) is expected
        child.wait()
        assert opener.pidfd is not None
        assert opener.pidfd.reaped
        assert fate(opener, {0, inode}) is Fate.GONE


def test_whom_nobody_knows() -> None:
    assert find_opener(0) == Opener(0, 0)
    assert find_opener(1 << 22) == Opener(0, 0)
    assert fate(Opener(0, 0), {1}) is Fate.UNSEEN
