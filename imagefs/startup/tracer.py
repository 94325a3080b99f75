"""Runs a command and sees its stages without any help of it: `imagefs startup trace`.

The command is a child of this process and gets the signals that this one gets. Its actions are seen in /proc
(`imagefs.startup.processes`) and by the timing of imports that its interpreters load (`stripefs.startup_imports`). All
its events, and those of all programs that know BOOTSEER_EVENTS or TRACEPARENT, belong to one start and have the span of
the command, `setup`, above them. That tracing fails is told, and is no reason for the command to.

Little is loaded before the command runs, and the rest beside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from imagefs.errors import CommandNotExecutable, CommandNotFound
from stripefs import startup_events
from stripefs.startup_events import ENV_FOLDER, ENV_JOB, ENV_RUN, ProcessIdentity, Writer, identity

if TYPE_CHECKING:
    from imagefs.startup.processes import Watcher

__all__ = ["run_traced"]

_KEPT = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS}
"""Signals of mistakes of this process itself."""

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def run_traced(
    command: Sequence[str],
    folder: str,
    *,
    imports: bool = True,
    unused: bool = False,
    ready_file: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """The exit status of the command, 128+N where signal N ended it. Raises RunErrors where it cannot be executed.

    folder: the spool. unused: tell of packages that are imported and not used. ready_file: the start is over when it
    appears, or is touched where it is there already. tell: hears that events cannot be written or seen.
    """
    who = identity()
    trace = who.trace or os.urandom(16).hex()
    who = who._replace(trace=trace, run=who.run or trace)
    every = signal.valid_signals() - _KEPT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, every)  # for the writer's thread as well, which would get them
    writer = Writer(folder, who, "trace")
    span = writer.begin("setup", os.path.basename(command[0]), command=" ".join(command))
    environ = _environment(os.environ, writer.folder, who, span.id)
    if imports:
        _time_imports(environ, unused=unused)
    stale = _stamp(ready_file)
    pid, since, others = 0, time.monotonic_ns(), os.listdir("/proc")
    try:
        pid = _spawned(command, environ, mask)
        from imagefs.startup.processes import Watcher

        appeared = lambda: _stamp(ready_file) not in (None, stale)  # noqa: E731
        look = _looks(Watcher(writer, pid, who, span.id, since, others), writer, appeared, tell)
        status = _waited(pid, look, every)
        look()
    finally:
        while signal.sigtimedwait(every, 0) is not None:  # those that came too late for the command
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        span.end(**({"status": status} if pid else {"error": "OSError"}))
        written = writer.close(1.0)
    if writer.problem or not written:
        tell(f"events are lost: {folder}: {writer.problem or 'the disk does not answer'}")
    return status


def _environment(environ: Mapping[str, str], folder: str, who: ProcessIdentity, span: str) -> dict[str, str]:
    flags = environ["TRACEPARENT"][53:55] if identity(environ).trace else "01"
    named = {
        name: value for name, value in ((ENV_RUN, who.run), (ENV_JOB, who.job)) if value
    }  # not by schedulers below
    return {**environ, **named, ENV_FOLDER: folder, "TRACEPARENT": f"00-{who.trace}-{span}-{flags}"}


def _time_imports(environ: dict[str, str], *, unused: bool) -> None:
    injected = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [injected, environ.get("PYTHONPATH")]))
    hook = os.path.dirname(os.path.abspath(startup_events.__file__))
    environ["BOOTSEER_IMPORTS"] = f"{hook}:{'unused' if unused else 'time'}"


def _spawned(command: Sequence[str], environ: Mapping[str, str], mask: set[int | signal.Signals]) -> int:
    try:
        return os.posix_spawnp(command[0], list(command), environ, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CommandNotFound(f"{command[0]}: {error.strerror}") from error
    except OSError as error:
        raise CommandNotExecutable(f"{command[0]}: {error.strerror}") from error


def _stamp(path: str) -> tuple[int, int] | None:
    """A value that is another one once a file is made or touched. None where there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _looks(
    watcher: Watcher, writer: Writer, appeared: Callable[[], bool], tell: Callable[[str], None]
) -> Callable[[], float]:
    """A function that looks at the processes, and answers in how many seconds it wants to look again."""
    ready = failed = False

    def look() -> float:
        nonlocal ready, failed
        if not ready and appeared():
            ready = True
            writer.instant("ready")
        try:
            return 0.1 if failed else watcher.look()
        except Exception as error:  # noqa: BLE001 the command is not to fail for it
            failed = True
            tell(f"the processes are not watched any more: {type(error).__name__}: {error}")
            return 0.1

    return look


def _waited(pid: int, look: Callable[[], float], every: set[signal.Signals]) -> int:
    """Wait for the command and pass signals on; its exit status."""
    after = time.monotonic()
    while True:
        pause = after - time.monotonic()
        if pause <= 0:
            after = time.monotonic() + (pause := look())
        found = signal.sigtimedwait(every, max(pause, 0.0))
        if found is None:
            continue
        if found.si_signo == signal.SIGCHLD:
            status = _reaped(pid)
            if status is not None:
                return status
        elif found.si_code <= 0:  # a process sent it; the kernel, for a terminal, sent it to the command as well
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, found.si_signo)
        elif found.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)


def _reaped(pid: int) -> int | None:
    """Reap what has ended, orphans of the command included where this is their init; the command's exit status."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if not ended:
            return None
