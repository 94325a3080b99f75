"""The OCI runtime, runc or crun: which is there, how it is called, its messages; and the marker of the command's start.

A command says that it has started by creating a file. The container gets a file system of its own for that, in memory,
so small that it holds nothing but names, with nosuid, nodev and noexec; it is on no disk of the host and no process of
the host comes across it. The process that runs the container holds it by a descriptor and learns of the file by
inotify, which works across mount namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import select
from collections.abc import Callable, Iterator, Sequence

from imagefs.errors import CommandNotExecutable, CommandNotFound, RunError
from imagefs.plane import kernel_mounts
from stripefs.fuse import kernel
from stripefs.osutil import check
from stripefs.records import NamedTuple

__all__ = ["Marker", "Runtime", "check_arguments", "find", "hide_unified_cgroups", "read_ahead", "watched"]

_NAMES = ("crun", "runc")
"""By choice: crun takes half the time of runc and a fifth of its memory."""

_UNIFIED = "/sys/fs/cgroup/unified"
_NOT_FOUND = r'executable file (.* )?not found|exec: "[^"]*": (stat .*: )?no such file or directory'
_NOT_EXECUTABLE = r'exec: "[^"]*": (permission denied|is a directory|exec format error)|open executable: '
_LONGEST_TEXT, _LEAST_ARGUMENTS, _MOST_ARGUMENTS = 32 * 4096, 128 << 10, 6 << 20
"""Bytes of one argument or variable, and of all together, that the kernel takes whatever the stack (fs/exec.c)."""


class Runtime(NamedTuple):
    """An OCI runtime. name: "runc" or "crun", which decides how it is spoken to."""

    path: str
    name: str

    def command(self, folder: str, container: str, *, rootless: bool = False) -> list[str]:
        """Run the container of the bundle `folder` in the foreground; its log, state and pid file lie there too.

        rootless: it has no cgroup of its own.
        """
        log = f"{folder}/log" if self.name == "runc" else f"file:{folder}/log"
        return [
            *(self.path, *(["--cgroup-manager=disabled"] if rootless and self.name == "crun" else [])),
            *("--root", f"{folder}/state", "--log", log, "--log-format", "json"),
            *("run", "--bundle", folder, "--pid-file", f"{folder}/pid", container),
        ]

    def failure(self, folder: str, command: str) -> RunError:
        """The reason for which the container did not start `command`, from the log; what that says the runtime has told
        people too.
        """
        message = ""
        with contextlib.suppress(OSError), open(f"{folder}/log", encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError, AttributeError):
                    entry = json.loads(line)
                    if entry.get("level") in ("error", "fatal"):
                        message = str(entry.get("msg", ""))
        if not message:
            return RunError(f"{self.name} could not start the container")
        error = RunError(f"{self.name} could not start the container: {message}")
        if re.search(_NOT_FOUND, message):
            error = CommandNotFound(f"the container has no {command}")
        elif re.search(_NOT_EXECUTABLE, message):
            error = CommandNotExecutable(f"the container cannot execute {command}")
        error.reported = True
        return error


def check_arguments(arguments: Sequence[str], environment: Sequence[str], stack: int) -> None:
    """Raises CommandNotExecutable for more than the kernel takes. Runtimes meet that when all seems to have gone well.

    stack: the soft limit of the stack in bytes, negative for none.
    """
    lengths = [len(os.fsencode(text)) + 1 for text in (*arguments, *environment)]
    most = max(_LEAST_ARGUMENTS, min(_MOST_ARGUMENTS, stack // 4 if stack >= 0 else _MOST_ARGUMENTS))
    if max(lengths) > _LONGEST_TEXT or sum(lengths) + lengths[0] + 8 * len(lengths) > most:
        raise CommandNotExecutable(
            f"the arguments and variables of {arguments[0]:.200} are longer than the kernel takes",
            hint=f"one may have {_LONGEST_TEXT} bytes, all together {most}",
        )


def find(wanted: str) -> Runtime:
    """`wanted` is "auto", a name on PATH, or a path. Raises RunError."""
    for name in _NAMES if wanted == "auto" else (wanted,):
        if path := _which(name):
            return Runtime(path, "crun" if "crun" in os.path.basename(path) else "runc")
    if wanted == "auto":
        raise RunError("neither crun nor runc is installed", hint="apt-get install crun, or --oci-runtime PATH")
    raise RunError(f"there is no program {wanted}", hint="--oci-runtime takes runc, crun, or the path of one of them")


def read_ahead(wanted: str) -> None:
    """Have the kernel read the program from disk, if it is there: the 10 MB of runc take as long as it then runs."""
    with contextlib.suppress(RunError, OSError):
        descriptor = os.open(find(wanted).path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def hide_unified_cgroups() -> None:
    """Let a private mount namespace look as if cgroups were v1 alone, where v2 has controllers beside them.

    crun refuses that mixture, though it would not use v2 then. In a user namespace mounts of the host are covered, as
    they cannot be taken away. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError), open(f"{_UNIFIED}/cgroup.controllers", "rb") as file:
        if not file.read().strip():
            return
        try:
            kernel.unmount(_UNIFIED, kernel.MNT_DETACH)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            kernel.mount("imagefs", _UNIFIED, "tmpfs", 0, "mode=555")


def _which(name: str) -> str:
    if "/" in name:
        candidates = [os.path.abspath(name)]
    else:
        candidates = [os.path.join(folder, name) for folder in os.get_exec_path() if folder.startswith("/")]
    return next((path for path in candidates if os.access(path, os.X_OK) and os.path.isfile(path)), "")


_NAME = "ready"
_OPTIONS = {"size": "16384", "nr_inodes": "16", "mode": "1777"}
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_libc = ctypes.CDLL(None, use_errno=True)


class Marker:
    """One such file system, until `close`. Raises OSError."""

    def __init__(self) -> None:
        self._mount = kernel_mounts.memory(_OPTIONS)

    def close(self) -> None:
        os.close(self._mount)

    def show(self, target: str) -> None:
        """Put it at `target`, once, in whichever mount namespace the caller is. Raises OSError."""
        os.mkdir(target, 0o700)
        kernel_mounts.show(self._mount, target)

    def watched(self, started: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Call `started` on another thread, once, when the file is there before the block ends. Raises OSError."""
        return watched(f"/proc/self/fd/{self._mount}", self._is_there, started)

    def _is_there(self) -> bool:
        try:
            os.stat(_NAME, dir_fd=self._mount, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


@contextlib.contextmanager
def watched(folder: str, is_there: Callable[[], bool], call: Callable[[], None]) -> Iterator[None]:
    """Call `call` on another thread, once, when `is_there` is true after a name came into `folder`, or before, until
    the block ends. Raises OSError."""
    import threading  # the child that prepares the container is under way

    stop = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        changes = _notify(folder)
        try:
            thread = threading.Thread(target=_wait, args=(changes, stop, is_there, call))
            thread.start()
            try:
                yield
            finally:
                os.eventfd_write(stop, 1)
                thread.join()
        finally:
            os.close(changes)
    finally:
        os.close(stop)


def _wait(changes: int, stop: int, is_there: Callable[[], bool], call: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(changes, select.POLLIN)
    poll.register(stop, select.POLLIN)
    while not is_there():
        ready = {descriptor for descriptor, _ in poll.poll()}
        if changes not in ready:
            return
        os.read(changes, 4096)
    call()


def _notify(path: str) -> int:
    """An inotify descriptor of the names that come into a directory. Raises OSError."""
    descriptor = check(_libc.inotify_init1(os.O_CLOEXEC), "inotify")
    try:
        check(_libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_CREATE | _IN_MOVED_TO), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
