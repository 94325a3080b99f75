"""Processes that hold a file, have closed it, or were killed: seen on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.vfs.writer_process import WriterProcess, WriterState, find_writer, writer_state


def test_ourselves(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        inode = os.fstat(file.fileno()).st_ino
        writer = find_writer(os.getpid())
        assert writer.pid == os.getpid()
        assert writer_state(writer, {0, inode}) is WriterState.HOLDS
        assert (
            writer_state(WriterProcess(writer.pid, writer.started + 1), {0, inode}) is WriterState.GONE
        )  # its number was given to another
    assert writer_state(writer, {0, inode}) is WriterState.GONE
    with open(tmp_path / "f", "rb"):
        assert writer_state(writer, {0, inode}) is WriterState.GONE  # it reads what it has written
    assert writer.pidfd is not None
    assert not writer.pidfd.reaped


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, WriterState.GONE),
        (signal.SIGKILL, WriterState.KILLED),
        (signal.SIGTERM, WriterState.KILLED),
        (signal.SIGINT, WriterState.GONE),
    ],
)
def test_processes_that_end(tmp_path: Path, end: signal.Signals | None, expected: WriterState) -> None:
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
        writer = find_writer(child.pid)
        assert writer_state(writer, {0, inode}) is WriterState.HOLDS
        if end is None:
            child.stdin.close()
        else:
            child.send_signal(end)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert writer_state(writer, {0, inode}) is expected
        child.wait()
        assert writer.pidfd is not None
        assert writer.pidfd.reaped
        assert writer_state(writer, {0, inode}) is WriterState.GONE


def test_whom_nobody_knows() -> None:
    assert find_writer(0) == WriterProcess(0, 0)
    assert find_writer(1 << 22) == WriterProcess(0, 0)
    assert writer_state(WriterProcess(0, 0), {1}) is WriterState.UNSEEN
