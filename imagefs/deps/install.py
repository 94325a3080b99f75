"""An installer run as its user wrote it, and what it left running.

It has the terminal, the standard streams, the group of processes and the signals that it would have without us. Between
it and us stands a process that becomes the parent of whatever it leaves behind (`imagefs.deps.subreaper`): as long as
something of it runs, nobody knows whether the files are as they will stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from imagefs.deps import subreaper
from imagefs.deps.check.rules import Finding, outcome_findings
from imagefs.errors import SnapshotError

if TYPE_CHECKING:
    from imagefs.deps.resolver import LockedInstall

__all__ = [
    "InstallOutcome",
    "Survivor",
    "install",
    "install_findings",
    "installer_environment",
    "read_end",
    "run_held",
    "text_of",
]

_BY_SIGNAL = 128
"""The least status of a program that a signal has ended."""

_OURS = {"PIP_COMPILE": ("PIP_COMPILE", "PIP_NO_COMPILE"), "UV_COMPILE_BYTECODE": ("UV_COMPILE_BYTECODE",)}
"""Variables that we set to 0, and those that say that the user did. pip takes PIP_NO_COMPILE=1 for its contrary."""

_TYPED = (signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that still ran when its installer had ended."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class InstallOutcome:
    """status: as a shell says it, 128 and the signal's number where one ended it. survivors: what still ran then, and
    was ended."""

    status: int
    survivors: tuple[Survivor, ...]
    seconds: float


def installer_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, and that bytecode is left to us, unless it says otherwise. A command line that does goes first."""
    ours = {name: "0" for name, given in _OURS.items() if not any(environ.get(one) for one in given)}
    return {**environ, **ours}


def install(command: Sequence[str], env: Mapping[str, str]) -> InstallOutcome:
    """Run `command`, found on PATH, until it and all that it started have ended; on the main thread.

    Signals that this process gets meanwhile are passed on. When it is killed the command is killed. One that does not
    exist has status 127. Raises SnapshotError when the command was not begun for a reason that is ours.
    """
    began = time.monotonic()
    left_open = list(_left_open())
    reader, writer = os.pipe()
    with _Signals() as signals, open(reader, encoding="utf-8") as report:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", subreaper.__file__, str(writer), str(os.getpid()), *command],
                env=env,
                pass_fds=(writer, *left_open),
            )
        except OSError as error:
            raise SnapshotError(f"the installer cannot be started: {error.strerror}") from error
        finally:
            os.close(writer)
        runs = report.readline()
        if runs:
            signals.pass_to(process)
        told = report.read()
        process.wait()
    if not runs:
        signals.repeat()
        raise SnapshotError("the installer could not be started under supervision")
    return read_end(told, time.monotonic() - began)


def run_held(
    locked: LockedInstall | None,
    run_locked: Callable[[LockedInstall], tuple[InstallOutcome, str]],
    run_as_written: Callable[[], InstallOutcome],
    forget: Callable[[], None],
    tell: Callable[[str], None],
) -> tuple[InstallOutcome, str]:
    """Run an installer held to a lock, None for none; its end, and the reason why it did not do what was resolved
    before, "" where it did.

    One that fails with a lock of an earlier start is run once more without that, for an index may have lost a file.
    forget: drops that lock. Raises what the two runs raise.
    """
    if locked is None:
        return run_as_written(), ""
    done, broken = run_locked(locked)
    if not done.status or not locked.cached or done.status >= _BY_SIGNAL:
        return done, broken
    forget()
    tell("the installer failed with what was resolved earlier; it runs once more as it was written")
    return run_as_written(), "it was installed without what was resolved before"


def _left_open() -> Iterator[int]:
    """Descriptors that whoever started us has left open for what is run from here."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the directory itself is closed by now
            if int(name) > 2 and os.get_inheritable(int(name)):
                yield int(name)


def read_end(told: str, seconds: float) -> InstallOutcome:
    """From the last line of a subreaper's report, "" for none."""
    if not told:  # whoever waited for it was killed, and it with that
        return InstallOutcome(128 + signal.SIGKILL, (), seconds)
    end = json.loads(told)
    survivors = tuple(Survivor(pid, line) for pid, line in end["survivors"])
    return InstallOutcome(int(end["status"]), survivors, seconds)


def install_findings(done: InstallOutcome, uncompiled: Sequence[str]) -> list[Finding]:
    """Findings about an installation that ended so. uncompiled: paths of sources."""
    findings = outcome_findings(done.status, [(one.pid, one.command) for one in done.survivors])
    return [*findings, *(Finding("bytecode", path) for path in uncompiled)]


def text_of(path: str) -> str | None:
    """The content of a file that a program may have written; None where it has not."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


class _Signals:
    """Passes signals on to a process, and keeps them until there is one. Signals that are ignored stay ignored, by
    all."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._kept: list[tuple[int, bool]] = []  # with whether the terminal has sent it to the whole group
        handlers = {number: signal.getsignal(number) for number in subreaper.FORWARDED}
        self._before = {
            number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)
        }

    def __enter__(self) -> _Signals:
        for number in self._before:
            signal.signal(number, self._take)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, process: subprocess.Popen[bytes]) -> None:
        """From now on, and what came so far."""
        self._process = process
        self._flush()

    def repeat(self) -> None:
        """Let what came, and was passed to nobody, happen to this process."""
        for number, _ in self._kept:
            os.kill(os.getpid(), number)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._kept.append((number, number in _TYPED and _in_foreground()))
        if self._process is not None:
            self._flush()

    def _flush(self) -> None:
        assert self._process is not None
        while self._kept:
            number, typed = self._kept.pop(0)
            if not typed:
                self._process.send_signal(number)


def _in_foreground() -> bool:
    """Tells whether a terminal sends what is typed to the group of processes that this one is in."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
