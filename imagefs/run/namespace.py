"""Namespaces that end with their container, whatever happens to the processes around it; and their process 1.

The runtime is process 1 of a PID namespace, in a mount namespace of its own, and is killed when the process that
started it ends. With process 1 the kernel kills all that is in the namespace, the container's daemons too; with the
last of them the mounts go, and with the mounts the loop devices and memory that they hold. No process has to clean up.

Usually the runtime is process 1 itself. But crun ends only once it has no children any more, and every server in the
namespace is, or becomes, a child of process 1. So where what serves the container's tree runs there too, one process
stands before the runtime: it passes signals on, reaps, and ends as the runtime does, and all servers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from imagefs.errors import RunError
from stripefs.fuse import kernel

__all__ = ["SI_KERNEL", "become_root", "child", "end_with", "is_alone", "keep_only", "private_mounts", "stay_behind"]

SI_KERNEL = 0x80
"""si_code of what a terminal sends to its foreground processes."""

_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Not to be caught, or about this process alone."""


def stay_behind(report: int, *, terminal: bool) -> None:
    """Go on in a child, and be its process 1 here. `report` is for the child alone. Raises OSError.

    terminal: the child sits in the same foreground group, and gets what a terminal sends by itself.
    """
    passed = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    child = os.fork()
    if child:
        os.close(report)
        _stand_before(child, passed, terminal)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stand_before(child: int, passed: set[signal.Signals], terminal: bool) -> NoReturn:
    while True:
        received = signal.sigwaitinfo(passed)
        if received.si_signo == signal.SIGCHLD:
            _reap(child)
        elif not (terminal and received.si_code == SI_KERNEL):
            os.kill(child, received.si_signo)


def _reap(child: int) -> None:
    """The process that ended; with `child` this process ends too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 1 << 14, 1 << 19
_PR_SET_PDEATHSIG = 1
_PINNING = ("erofs", "overlay")
"""Types of mounts, besides those of FUSE, whose end somebody waits for."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def child(run: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A child that is process 1 of a new PID namespace and is killed when this thread ends; and where to read what it
    tells. For root; of others the child has to `become_root` first.

    run: what it does, given where to write; it must not rely on other threads, and tells errors in its own way. After
    the block the child is gone, and with it all that it has started. Raises OSError.
    """
    report, told = os.pipe()
    parent = os.pidfd_open(os.getpid())
    sys.stdout.flush()
    try:
        with _children_in_new_pid_namespace() if os.geteuid() == 0 else contextlib.nullcontext():
            pid = os.fork()
            if pid == 0:
                _in_child(run, parent, told)
    except OSError:
        os.close(report)
        raise
    finally:
        os.close(parent)
        os.close(told)
    try:
        yield pid, report
    finally:
        os.close(report)
        with contextlib.suppress(ChildProcessError):  # it was waited for already
            if not os.waitpid(pid, os.WNOHANG)[0]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _in_child(run: Callable[[int], None], parent: int, told: int) -> NoReturn:
    try:
        end_with(parent)
        run(told)
    except BaseException as error:  # noqa: BLE001 the border of this process: its parent's frames must not run twice
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(1)


@contextlib.contextmanager
def _children_in_new_pid_namespace() -> Iterator[None]:
    """The first child forked inside the block is process 1 of a new PID namespace. Raises OSError."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWPID), "a PID namespace")
        try:
            yield
        finally:
            _check(_libc.setns(own, _CLONE_NEWPID), "a PID namespace")
    finally:
        os.close(own)


def end_with(parent: int) -> None:
    """Be killed when the thread that forked us ends; exits at once when it already did. `parent`: a pidfd of it."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)


def become_root(report: int, *, terminal: bool) -> None:
    """Go on as root, and process 1, of namespaces in which the user who calls is root and all others are nobody.

    report, terminal: as `stay_behind` has them. Raises RunError where the kernel allows no such thing, OSError.
    """
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID):
        reason = os.strerror(ctypes.get_errno())
        raise RunError(f"running a container needs root, or a user namespace: {reason}", hint="sudo")
    for name, text in {"setgroups": "deny", **{name: f"0 {number} 1" for name, number in ids.items()}}.items():
        with open(f"/proc/self/{name}", "wb", buffering=0) as file:
            file.write(text.encode())
    if not terminal:
        os.setpgid(0, 0)  # what is sent to our group comes once, by our parent
    before = os.pidfd_open(os.getpid())
    stay_behind(report, terminal=terminal)
    end_with(before)
    os.close(before)


def private_mounts() -> None:
    """Go on with a copy of all mounts that nobody else sees; what the host unmounts still goes away here.

    /proc then shows the PID namespace of the caller. Raises OSError.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "a mount namespace")
    kernel.mount("", "/", "", _MS_REC | _MS_SLAVE, "")
    kernel.mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")


def is_alone() -> bool:
    """Tells whether nobody but us is in our PID namespace."""
    return sum(name.isdigit() for name in os.listdir("/proc")) == 1


def keep_only(needed: Sequence[str]) -> None:
    """Let go, in a private namespace, of mounts that are not needed to reach `needed` or what is mounted below it.

    Where the host's mounts are not shared, as in most containers, what it unmounts does not go away here; a FUSE mount
    would live on, without anybody seeing it, until the container ends. So those, and images, are given up at once.
    Nothing is touched on them.
    """
    kept = [os.path.realpath(path) for path in needed]
    for mount in reversed(kernel.mounts()):
        pins = mount.fstype in _PINNING or mount.fstype.partition(".")[0] in ("fuse", "fuseblk")
        if pins and mount.path != "/" and not any(_related(mount.path, path) for path in kept):
            with contextlib.suppress(OSError):  # it stood on one that is gone already
                kernel.unmount(mount.path, kernel.MNT_DETACH)


def _related(mountpoint: str, path: str) -> bool:
    """Tells whether `path` lies on what is mounted there, or that lies below `path`."""
    return path == mountpoint or path.startswith(f"{mountpoint}/") or mountpoint.startswith(f"{path.rstrip('/')}/")


def _check(result: int, subject: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
