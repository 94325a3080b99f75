"""Programs that benchmarks run, whose failures are one line: to their end, beside a block, or until they are ready."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import ROOT, BenchError
from bench.harness.processes import kill_tree

__all__ = [
    "Start",
    "inside",
    "last_line",
    "output",
    "run",
    "run_module",
    "service",
    "started",
    "tool_version",
    "wait_until",
]

_SERVICE_STARTS_WITHIN = 60.0
_SERVICE_ENDS_WITHIN = 20.0
_READY_WITHIN = 300.0  # seconds until a job says that it is ready
_JOB_ENDS_WITHIN = 60.0
_OBEYS_WITHIN = 5.0


def inside(namespace: str) -> list[str]:
    """The words before a command that run it in a network namespace; none for "", where it runs in that of its caller.

    Not `ip netns exec`, which would give it a mount namespace of its own as well.
    """
    return ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []


def output(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """The standard output of `command`. Raises BenchError with its last line where it fails."""
    done = subprocess.run(
        list(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=env, cwd=cwd
    )
    if done.returncode:
        words = last_line(done.stderr.strip() or done.stdout)
        raise BenchError(f"{' '.join(map(str, command[:3]))} … failed: {words}")
    return done.stdout


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run `command` for its effect. Raises BenchError with its last line where it fails."""
    output(*command, env=env, cwd=cwd)


def wait_until(condition: Callable[[], object], within: float, failure: str, pause: float = 0.1) -> None:
    """Ask again and again until `condition` is true. Raises BenchError where that takes more than `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{failure} within {within:g} s")
        time.sleep(pause)


def tool_version(name: str) -> str:
    """The last word of the first line that `NAME --version` prints."""
    return output(name, "--version").splitlines()[0].split()[-1]


def last_line(written: str | bytes) -> str:
    """The last line of a program's output, or that there is none."""
    text = written if isinstance(written, str) else written.decode(errors="replace")
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def run_module(
    module: str, arguments: Sequence[str], text: str, limit: float, environment: Mapping[str, str], mount: int = 0
) -> dict[str, float]:
    """Run `python -m module` on `text` and return the JSON it prints.

    Raises BenchError where it fails or takes more than `limit` seconds. Then, and when interrupted, it is killed, and
    before it the processes that serve its `mount`: a reader that waits for one of them cannot die earlier.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, errors = process.communicate(text, timeout=limit)
    except BaseException as error:
        kill_tree(mount)
        process.kill()
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise BenchError(f"had not ended after {limit:.0f} s and was given up") from error
        raise
    if process.returncode:
        raise BenchError(f"{module} failed: {last_line(errors)}")
    answer: dict[str, float] = json.loads(printed)
    return answer


@contextmanager
def service(
    name: str,
    command: Sequence[str | Path],
    log: Path,
    ready: Callable[[], bool] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a program until the block ends, its output in `log`; the block gets its process id.

    ready: asked again and again, the block begins when it answers true. environment: added to that of this process.
    Raises BenchError with the program's last line where it ends before that, or takes too long.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # a ^C is ours to handle
        )
    try:
        deadline = time.monotonic() + _SERVICE_STARTS_WITHIN
        while ready is not None and not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{name} did not start: {last_line(log.read_bytes())}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_SERVICE_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
        line = _first_line(process, begin + _READY_WITHIN)
        seconds = time.monotonic() - begin
        try:
            said = json.loads(line)
        except ValueError as error:
            raise BenchError(f"{_name(command)} did not become ready: {_last_words(process)}") from error
        yield Start(seconds, said, process.pid)
        _, errors = process.communicate(timeout=_JOB_ENDS_WITHIN)
        if process.returncode:
            raise BenchError(f"{_name(command)} ended with {process.returncode}: {last_line(errors)}")
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{_name(command)} did not end within {_JOB_ENDS_WITHIN:g} s of its job's end") from error
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
                raise BenchError(f"the job said nothing within {_READY_WITHIN:g} s")
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
        _, errors = process.communicate(timeout=_JOB_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        return "it said nothing"
    return last_line(errors)


def _name(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:2]])
