"""Starting what says when it is ready: `bench.start`, in a container or not."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cluster import BenchError

__all__ = ["Start", "started"]

_LIMIT = 300.0  # seconds until the line
_ENDS_WITHIN = 60.0
_OBEYS_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class Start:
    """A job that is ready. `seconds` from starting the command to reading the line, which said `said`.

    `pid` is the command's.
    """

    seconds: float
    said: dict[str, Any]
    pid: int

    @property
    def inside(self) -> float:
        """Seconds from the first line of the program that is started to its last."""
        return float(self.said["ready"] - self.said["began"])


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Start]:
    """Run `command` until it prints a line of JSON; the block then has a job that waits.

    Its input is closed at the end of the block, whereupon it has to end by itself and well. environment: all of it, by
    default that of this process. Raises BenchError where it prints nothing or fails. It never outlives the block.
    """
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a ^C is ours to handle
    )
    try:
        line = _first_line(process, begin + _LIMIT)
        seconds = time.monotonic() - begin
        try:
            said = json.loads(line)
        except ValueError as error:
            raise BenchError(f"{_name(command)} did not become ready: {_last_words(process)}") from error
        yield Start(seconds, said, process.pid)
        _, errors = process.communicate(timeout=_ENDS_WITHIN)
        if process.returncode:
            raise BenchError(f"{_name(command)} ended with {process.returncode}: {_last(errors)}")
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{_name(command)} did not end within {_ENDS_WITHIN:g} s of its job's end") from error
    finally:
        _end(process)


def _first_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Up to a newline or the end. Raises BenchError where neither comes before `deadline`."""
    assert process.stdout is not None
    held = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in held:
            if not selector.select(deadline - time.monotonic()):
                raise BenchError(f"the job said nothing within {_LIMIT:g} s")
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                break
            held += piece
    return held.partition(b"\n")[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """See that it is gone: by the end of its input, which process 1 of a container heeds before any signal, or else."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None and number is not None:
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(None if number == signal.SIGKILL else _OBEYS_WITHIN)


def _last_words(process: subprocess.Popen[bytes]) -> str:
    try:
        _, errors = process.communicate(timeout=_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        return "it said nothing"
    return _last(errors)


def _last(errors: bytes) -> str:
    return (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]


def _name(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:2]])
