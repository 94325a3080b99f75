"""Watches the processes below a command in /proc, and writes the events that docs/startup-events.md lists for them.

Nothing is asked of the processes, so they lose nothing but a share of a processor, which `Watcher.look` bounds to two
per cent. Changes between two looks are seen at the second: events have the fact `within_ns`. A process that lives
shorter than that may be missed. The identity (rank, attempt) is that of each process's own environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator

from stripefs.fuse import kernel
from stripefs.startup_events import ProcessIdentity, Span, Writer, identity

__all__ = ["Watcher"]

INTERVAL = 0.02
_SHARE = 0.02

_INSTALLER = re.compile(
    r"(pip|uv|conda|mamba|apt|npm)[\d.]*|micromamba|pipx|poetry|pdm|apt-get|dnf|yum|apk|easy_install"
)
_INTERPRETER = re.compile(r"python[\d.]*")
_CHECKPOINT = re.compile(r"\.(safetensors|pt|pth|ckpt|distcp|gguf|npz)$|/pytorch_model[^/]*\.bin$")
_ACCELERATOR = re.compile(r"/dev/(nvidia|kfd$|dri/|accel|davinci|habanalabs|hl\d|neuron\d)")


class _Process:
    """One that is watched. files: spans of checkpoint files that it reads, by path. inherited: paths that it got open
    from the process that forked it, and has not closed; None before it is examined."""

    def __init__(self, pid: int, parent: int, who: ProcessIdentity) -> None:
        self.pid, self.parent, self.who = pid, parent, who
        self.command, self.program = b"", ""
        self.installing: Span | None = None
        self.files: dict[str, Span] = {}
        self.inherited: set[str] | None = None
        self.accelerated = False


class Watcher:
    """Of the process `root` and all below it, for one thread.

    parent: the span that contains all others. since, others: the monotonic time in nanoseconds, and what /proc held,
    before the root began.
    """

    def __init__(
        self, writer: Writer, root: int, who: ProcessIdentity, parent: str, since: int, others: Iterable[str]
    ) -> None:
        self._writer, self._parent, self._who = writer, parent, who
        self._known = set(others)
        self._members: dict[int, _Process] = {}
        self._root = root
        self._mounts: tuple[str, ...] = ()
        self._looked = since
        self._within = 0
        self._looks = 0

    def look(self) -> float:
        """Write what has changed; how long to wait until the next look, in seconds."""
        begin = time.monotonic_ns()
        self._within, self._looked = begin - self._looked, begin
        if self._looks % 50 == 0:
            self._mounts = _mounts()
        self._looks += 1
        self._find()
        for process in list(self._members.values()):
            if not self._examine(process):
                self._left(process)
                del self._members[process.pid]
        cost = (time.monotonic_ns() - begin) / 1e9
        return max(INTERVAL, cost / _SHARE)

    def _find(self) -> None:
        """Take up processes whose parent is watched."""
        now = {name for name in os.listdir("/proc") if name.isdigit()}
        stats = {int(name): _stat(int(name)) for name in now - self._known}
        parents = {pid: int(fields[1]) for pid, fields in stats.items() if fields}
        self._known = now
        while fresh := [pid for pid, parent in parents.items() if pid == self._root or parent in self._members]:
            for pid in fresh:
                self._members[pid] = _Process(pid, parents.pop(pid), self._who)

    def _examine(self, process: _Process) -> bool:
        """Compare a process with what was known of it; whether it is still there."""
        command = _read(process.pid, "cmdline")
        if not command:  # for a moment while a program is executed, or it has ended
            return _stat(process.pid)[:1] not in ([], [b"Z"], [b"X"])
        if command != process.command:
            self._executed(process, command)
        opened = dict(_open_files(process.pid))
        device = "" if process.accelerated else next(filter(_ACCELERATOR.match, opened), "")
        if device:
            process.accelerated = True
            self._tell("setup", "accelerator", process, device=device)
        if process.inherited is None:
            above = self._members.get(process.parent)
            process.inherited = set() if above is None else {*above.files, *(above.inherited or ())}
        process.inherited &= opened.keys()
        for path in filter(self._is_checkpoint, opened):
            if path not in process.files and path not in process.inherited and _is_read(process.pid, opened[path]):
                span = self._writer.begin("checkpoint", path, parent=self._parent, who=process.who)
                process.files[path] = span
        closed = process.files.keys() - opened.keys()
        mapped = _read(process.pid, "maps", 1 << 22) if closed else b""
        for path in closed:
            if os.fsencode(path) not in mapped:
                process.files.pop(path).end(**self._facts(process))
        return True

    def _is_checkpoint(self, path: str) -> bool:
        return path.startswith(self._mounts) or _CHECKPOINT.search(path) is not None

    def _executed(self, process: _Process, command: bytes) -> None:
        """A process runs another program than at the last look; one that has only forked runs its parent's."""
        parent = self._members.get(process.parent)
        forked = not process.command and parent is not None and parent.command == command
        self._left(process)
        process.command = command
        if forked:
            return
        words = [word.decode(errors="replace") for word in command[:2000].split(b"\0")]
        process.program = _program(words)
        process.who = self._identity(process.pid)
        self._tell("setup", f"exec {process.program}", process, command=" ".join(words).strip())
        above, installing = parent, False
        while above is not None:
            installing = installing or above.installing is not None
            above = self._members.get(above.parent)
        if _INSTALLER.fullmatch(process.program) and not installing:
            span = self._writer.begin("dependencies", process.program, parent=self._parent, who=process.who)
            process.installing = span

    def _identity(self, pid: int) -> ProcessIdentity:
        """The command's identity, with rank and attempt of the process's own environment."""
        pairs = (entry.partition(b"=")[::2] for entry in _read(pid, "environ", 1 << 20).split(b"\0"))
        found = identity({os.fsdecode(name): os.fsdecode(value) for name, value in pairs})
        return self._who._replace(rank=found.rank, attempt=found.attempt or self._who.attempt)

    def _left(self, process: _Process) -> None:
        """End what the program of a process was at."""
        for span in (*process.files.values(), *([process.installing] if process.installing else [])):
            span.end(**self._facts(process))
        process.files.clear()
        process.installing = None
        if process.program:
            self._tell("setup", f"exit {process.program}", process)
            process.program = ""

    def _facts(self, process: _Process) -> dict[str, object]:
        return {"process": process.pid, "within_ns": self._within}

    def _tell(self, stage: str, name: str, process: _Process, **facts: object) -> None:
        facts |= self._facts(process)
        self._writer.emit("instant", stage, name, parent=self._parent, facts=facts, who=process.who)


def _program(words: list[str]) -> str:
    """The name of a program; of one that an interpreter runs, that of the script or module."""
    name = os.path.basename(words[0])
    if not _INTERPRETER.fullmatch(name):
        return name
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, name)
        if word == "-c":
            return name
        if word in ("-X", "-W"):
            next(rest, "")
        elif word and not word.startswith("-"):
            return os.path.basename(word)
    return name


def _read(pid: int, name: str, most: int = 1 << 16) -> bytes:
    """A file of a process in /proc, nothing where it is gone or another user's."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def _stat(pid: int) -> list[bytes]:
    """State, parent and more of a process."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    """A file that a process has open: path and descriptor."""
    folder = f"/proc/{pid}/fd/"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                path = os.readlink(folder + name)
                if path.startswith("/"):
                    yield path, name


def _is_read(pid: int, descriptor: str) -> bool:
    """True for a file, not a directory, that is open for reading alone."""
    found = re.search(rb"^flags:\s+([0-7]+)", _read(pid, f"fdinfo/{descriptor}"), re.MULTILINE)
    flags = int(found[1], 8) if found else os.O_PATH
    return flags & (os.O_ACCMODE | os.O_PATH | os.O_DIRECTORY) == os.O_RDONLY


def _mounts() -> tuple[str, ...]:
    """Mountpoints of stripefs, with a slash behind."""
    return tuple(f"{mount.path}/" for mount in kernel.mounts() if mount.fstype == "fuse.stripefs")
