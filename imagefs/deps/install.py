"""An installer run as its user wrote it, what it left running, and bytecode for all that it installed.

It has the terminal, the standard streams, the group of processes and the signals that it would have without us. Between
it and us stands a process that becomes the parent of whatever it leaves behind (`imagefs.deps.subreaper`): as long as
something of it runs, nobody knows whether the files are as they will stay.

Bytecode is made by the interpreter that will import it, with its own `compileall`. Installers compile on one processor
and note the time of each source beside its bytecode, which differs between two installations of the same wheels. Here
all processors compile, and what is noted is the hash of the source (`unchecked-hash`, PEP 552): it is valid whatever
becomes of times, and an import compiles nothing, from a read-only mount too. Bytecode that is there is replaced, never
written to, since it may be a hardlink into an installer's cache.

Equal sources mostly give equal bytes, on which nothing here relies. Of 871 sources of 5 packages none differed
between one process and two with CPython 3.11, 3.12 and 3.13, none of the 850 that 3.8 compiles, and two with 3.10
(one run each). A module made for the purpose, whose sets hold names that its process knows already, differs with all
five. A file that differs takes room in a store, no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Literal, NamedTuple

from imagefs.deps import subreaper
from imagefs.deps.check.rules import Finding, outcome_findings
from imagefs.errors import SnapshotError

if TYPE_CHECKING:
    from imagefs.deps.resolver import LockedInstall

__all__ = [
    "BytecodeMode",
    "InstallOutcome",
    "compile_command",
    "compile_environment",
    "compile_failures",
    "compile_order",
    "compile_tree",
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


class InstallOutcome(NamedTuple):
    """status: as a shell says it, 128 and the signal's number where one ended it. survivors: pid and command line of
    what still ran then, and was ended."""

    status: int
    survivors: Sequence[tuple[int, str]]
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
    if not told:  # the process that waited for it was killed, and it with that
        return InstallOutcome(128 + signal.SIGKILL, (), seconds)
    end = json.loads(told)
    return InstallOutcome(int(end["status"]), [(pid, line) for pid, line in end["survivors"]], seconds)


def install_findings(done: InstallOutcome, uncompiled: Sequence[str]) -> list[Finding]:
    """Findings about an installation that ended so. uncompiled: paths of sources."""
    findings = outcome_findings(done.status, done.survivors)
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
        """Deliver to this process the signals that came and were passed on to no child."""
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


BytecodeMode = Literal["unchecked", "checked"]
"""Tells whether an import believes the bytecode, or compares the hash of the source first: for sources that are
edited."""

_COMPILER = """
import functools, json, os, sys, threading
sys.path[:] = [path for path in sys.path if path]
import compileall, concurrent.futures, py_compile

def end_with_caller():
    while os.read(0, 4096):
        pass
    os.killpg(0, 9)
with open(sys.argv[1]) as file:
    job = json.load(file)
compiled = functools.partial(compileall.compile_file, force=True, quiet=2)
compiled.keywords["invalidation_mode"] = py_compile.PycInvalidationMode[job["mode"]]
with concurrent.futures.ProcessPoolExecutor(job["workers"]) as pool:
    done = pool.map(compiled, job["sources"], chunksize=4)
    threading.Thread(target=end_with_caller, daemon=True).start()  # after the processes, which are forked
    json.dump([path for path, good in zip(job["sources"], done) if not good], sys.stdout)
"""
"""For any CPython from 3.8 on. Its argument is a file with what `compile_order` answers; it writes what
`compile_failures` reads. Its standard input is a pipe: when that ends, so do all processes of its group."""


def compile_tree(python: str, targets: Sequence[str], mode: BytecodeMode = "unchecked") -> list[str]:
    """Compile every source below `targets`, directories, with `python`, a path or a name on PATH; those that do not
    compile, as templates for other versions do not. Raises SnapshotError when the interpreter cannot do it; OSError.
    """
    sources = [path for top in targets for path in _sources_below(top)]
    with tempfile.NamedTemporaryFile("w") as job, tempfile.TemporaryFile() as messages:
        job.write(compile_order(sources, mode))
        job.flush()
        try:
            # In /, since interpreters import from where they are started.
            process = subprocess.Popen(
                compile_command(python, job.name),
                env=compile_environment(os.environ),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                start_new_session=True,
            )
        except OSError as error:
            raise SnapshotError(f"{python} cannot be run: {error.strerror}") from error
        with process:
            assert process.stdout is not None
            answer = process.stdout.read()
            status = process.wait()
        if status:
            messages.seek(0)
            last = messages.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise SnapshotError(f"{python} could not compile what was installed: {last or f'exit status {status}'}")
    return compile_failures(answer)


def _sources_below(top: str) -> Iterator[str]:
    """The sources in a directory; links to directories are not followed. Raises OSError."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(top, onerror=refuse):
        if os.path.basename(folder) != "__pycache__":
            paths = (os.path.join(folder, name) for name in names if name.endswith(".py"))
            yield from filter(os.path.isfile, paths)


def compile_command(python: str, job: str) -> list[str]:
    """The command line that compiles what a file asks for. job: its path, as `python` sees it.

    It is to lead a group of processes, and its standard input must be a pipe that stays open: when that ends the group
    is killed. Its standard output is for `compile_failures`.
    """
    return [python, "-S", "-s", "-B", "-W", "ignore", "-c", _COMPILER, job]


def compile_order(sources: Sequence[str], mode: BytecodeMode) -> str:
    """The content of the file that `compile_command` is given: JSON. sources: absolute, as that interpreter sees
    them."""
    workers = min(len(os.sched_getaffinity(0)), len(sources) or 1)
    return json.dumps({"sources": list(sources), "mode": f"{mode.upper()}_HASH", "workers": workers})


def compile_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for it: nothing that changes what a compiler writes or what is imported."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON") or name == "PYTHONHOME"}
    return kept | {"PYTHONHASHSEED": "0"}


def compile_failures(answer: bytes) -> list[str]:
    """The sources that did not compile, from what the command wrote. Raises SnapshotError for anything else."""
    try:
        return sorted(map(str, json.loads(answer)))
    except (ValueError, TypeError, RecursionError) as error:
        raise SnapshotError("the interpreter's report on what it compiled makes no sense") from error
