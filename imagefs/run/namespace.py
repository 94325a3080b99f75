"""Namespaces of containers: those that end with their container, their process 1, and user namespaces.

The runtime is process 1 of a PID namespace, in a mount namespace of its own, and is killed when the process that
started it ends. With process 1 the kernel kills all that is in the namespace, the container's daemons too; with the
last of them the mounts go, and with the mounts the loop devices and memory that they hold. No process has to clean up.

Usually the runtime is process 1 itself. But crun ends only once it has no children any more, and every server in the
namespace is, or becomes, a child of process 1. So where what serves the container's tree runs there too, one process
stands before the runtime: it passes signals on, reaps, and ends as the runtime does, and all servers with it.

In a user namespace (`--userns`) the root of a container is an unprivileged user of the host. The ids 0 to 65535 of the
container are as many ids of the host, from the one that `--userns` names. The layers of the image are shown by idmapped
mounts, so that files of its root belong to the container's, and nothing is copied or changed; an overlay above them has
its written files by ids of the host. The runtime then makes the namespace itself.

From inside of a user namespace a runtime can reach only what that user of the host can, and the folder of a run is for
root alone. So all that is mounted in the container is moved, in the private mount namespace of the run, to a file
system in memory. It lies at a directory that everybody may pass and that the run does not need, whose own content is
hidden from this run.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence

from imagefs.errors import RunError
from imagefs.plane import kernel_mounts
from imagefs.run.options import IDS
from stripefs.fuse import kernel
from stripefs.osutil import check

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = [
    "SI_KERNEL",
    "child",
    "end_with_parent",
    "enter_user_namespace",
    "fork_init",
    "is_alone",
    "keep_locked_flags",
    "move_mounts",
    "own_first_id",
    "private_mounts",
    "show_mapped",
    "unmount_others",
    "user_namespace",
]

SI_KERNEL = 0x80
"""si_code of what a terminal sends to its foreground processes."""

_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Not to be caught, or about this process alone."""

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 1 << 14, 1 << 19
_PR_SET_PDEATHSIG = 1
_PINNING = ("erofs", "overlay")
"""Types of mounts, besides those of FUSE, whose end somebody waits for."""

_libc = ctypes.CDLL(None, use_errno=True)

_FIRST_FREE, _LAST_FREE = 0x00080000, 0x6FFF0000
"""The ids that systemd leaves to containers, a range of 65536 each (its document on users, groups, UIDs and GIDs)."""

_PLACES = ("/mnt", "/media", "/srv", "/opt", "/home", "/tmp")  # noqa: S108
"""Directories of every host. The first is taken that the run needs nothing of."""

_LOCKED = {1: "ro", 2: "nosuid", 4: "nodev", 8: "noexec", 1024: "noatime", 2048: "nodiratime", 4096: "relatime"}
"""Flags of statvfs(3) that a mount in a user namespace keeps from where it comes, and how runtimes name them."""


def fork_init(report: int, *, terminal: bool) -> None:
    """Go on in a child, and be its process 1 here. `report` is for the child alone. Raises OSError.

    terminal: the child sits in the same foreground group, and gets what a terminal sends by itself.
    """
    passed = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    child = os.fork()
    if child:
        os.close(report)
        _run_init(child, passed, terminal)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_init(child: int, passed: set[signal.Signals], terminal: bool) -> NoReturn:
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


@contextlib.contextmanager
def child(run: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A child that is process 1 of a new PID namespace and is killed when this thread ends; and where to read what it
    tells. For root; of others the child has to `enter_user_namespace` first.

    run: what it does, given where to write; it must not rely on other threads, and tells errors in its own way. After
    the block the child is gone, and with it all that it has started. Raises OSError.
    """
    report, writer = os.pipe()
    parent = os.pidfd_open(os.getpid())
    sys.stdout.flush()
    try:
        with _children_in_new_pid_namespace() if os.geteuid() == 0 else contextlib.nullcontext():
            pid = os.fork()
            if pid == 0:
                _in_child(run, parent, writer)
    except OSError:
        os.close(report)
        raise
    finally:
        os.close(parent)
        os.close(writer)
    try:
        yield pid, report
    finally:
        os.close(report)
        with contextlib.suppress(ChildProcessError):  # it was waited for already
            if not os.waitpid(pid, os.WNOHANG)[0]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _in_child(run: Callable[[int], None], parent: int, writer: int) -> NoReturn:
    try:
        end_with_parent(parent)
        run(writer)
    except BaseException as error:  # noqa: BLE001 the border of this process: its parent's frames must not run twice
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(1)


@contextlib.contextmanager
def _children_in_new_pid_namespace() -> Iterator[None]:
    """The first child forked inside the block is process 1 of a new PID namespace. Raises OSError."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        check(_libc.unshare(_CLONE_NEWPID), "a PID namespace")
        try:
            yield
        finally:
            check(_libc.setns(own, _CLONE_NEWPID), "a PID namespace")
    finally:
        os.close(own)


def end_with_parent(parent: int) -> None:
    """Be killed when the thread that forked us ends; exits at once when it already did. `parent`: a pidfd of it."""
    check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)


def enter_user_namespace(report: int, *, terminal: bool) -> None:
    """Go on as root, and process 1, of namespaces in which the user who calls is root and all others are nobody.

    report, terminal: as `fork_init` has them. Raises RunError where the kernel allows no such thing, OSError.
    """
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID):
        reason = os.strerror(ctypes.get_errno())
        raise RunError(f"running a container needs root, or a user namespace: {reason}", hint="sudo")
    for name, text in {"setgroups": "deny", **{name: f"0 {number} 1" for name, number in ids.items()}}.items():
        with open(f"/proc/self/{name}", "wb", buffering=0) as file:
            file.write(text.encode())
    if not terminal:
        os.setpgid(0, 0)  # a signal to our group comes once, by our parent
    before = os.pidfd_open(os.getpid())
    fork_init(report, terminal=terminal)
    end_with_parent(before)
    os.close(before)


def private_mounts() -> None:
    """Go on with a copy of all mounts that nobody else sees; what the host unmounts still goes away here.

    /proc then shows the PID namespace of the caller. Raises OSError.
    """
    check(_libc.unshare(_CLONE_NEWNS), "a mount namespace")
    kernel.mount("", "/", "", _MS_REC | _MS_SLAVE, "")
    kernel.mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")


def is_alone() -> bool:
    """Tells whether nobody but us is in our PID namespace."""
    return sum(name.isdigit() for name in os.listdir("/proc")) == 1


def unmount_others(needed: Sequence[str]) -> None:
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


def own_first_id() -> int:
    """The first of as many ids of the host as a namespace has, most likely of no other container."""
    choices = (_LAST_FREE - _FIRST_FREE) // IDS + 1
    return _FIRST_FREE + int.from_bytes(os.urandom(8), "little") % choices * IDS


@contextlib.contextmanager
def user_namespace(first: int) -> Iterator[int]:
    """A descriptor of a user namespace with these ids, for mounts; -1 where `first` is 0. Raises RunError, OSError."""
    if not first:
        yield -1
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # it holds the namespace until that is open
        os.write(writer, b"1" if _libc.unshare(_CLONE_NEWUSER) == 0 else b"0")
        signal.pause()
        os._exit(0)
    try:
        if os.read(reader, 1) != b"1":
            raise RunError("this machine allows no user namespaces", hint="sysctl user.max_user_namespaces")
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{kind}", "wb", buffering=0) as file:
                file.write(f"0 {first} {IDS}".encode())
        descriptor = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(writer)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def show_mapped(path: str, user_namespace: int) -> None:
    """Put an idmapped mount in the place of the one at `path`. Raises RunError where its file system has none."""
    mapped = kernel_mounts.clone(path)
    try:
        _map(mapped, user_namespace, f"the image is shown by {_fstype(path)}", "--plane erofs, the kernel's own")
        kernel.unmount(path, kernel.MNT_DETACH)
        kernel_mounts.show(mapped, path)
    finally:
        os.close(mapped)


def move_mounts(document: dict[str, Any], user_namespace: int, mapped: Sequence[str], needed: Sequence[str]) -> str:
    """Let a config.json mount from places that the container's root can reach; the directory where they are.

    mapped: targets of binds whose owners are the container's. needed: paths that must stay reachable. Raises RunError,
    OSError.
    """
    place = _place(needed)
    with contextlib.ExitStack() as held:
        sources = [(document["root"]["path"], kernel_mounts.clone(document["root"]["path"], recursive=True))]
        binds = [mount for mount in document["mounts"] if mount["type"] == "bind"]
        sources += [(mount["source"], kernel_mounts.clone(mount["source"], recursive=True)) for mount in binds]
        for _, descriptor in sources:
            held.callback(os.close, descriptor)
        for mount, (source, descriptor) in zip(binds, sources[1:], strict=True):
            if mount["destination"] in mapped:
                _map(
                    descriptor, user_namespace, f"--bind {source} with idmap is on {_fstype(source)}", "leave idmap out"
                )
        kernel.mount("imagefs", place, "tmpfs", _MS_NOSUID, "mode=711")
        shown = []
        for number, (_, descriptor) in enumerate(sources):
            shown.append(f"{place}/{number}")
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                os.mkdir(shown[-1])
            else:
                os.close(os.open(shown[-1], os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            kernel_mounts.show(descriptor, shown[-1])
    document["root"]["path"] = shown[0]
    for mount, source in zip(binds, shown[1:], strict=True):
        mount["source"] = source
        keep_locked_flags(mount)
    if not any(kind["type"] == "network" for kind in document["linux"]["namespaces"]):
        _show_sysfs(document, f"{place}/sys")
    _take_own_null(f"{place}/null")
    return place


def _take_own_null(path: str) -> None:
    """Let standard input, output and error be a /dev/null of this run's where they are the host's.

    crun (until August 2025) makes them the container's, whose user could then close the host's to all others.
    """
    number = os.stat("/dev/null").st_rdev
    os.mknod(path, stat.S_IFCHR | 0o600, number)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # it is closed
            status = os.fstat(stream)
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == number:
                descriptor = os.open(path, fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE | os.O_CLOEXEC)
                os.dup2(descriptor, stream)
                os.close(descriptor)


def _show_sysfs(document: dict[str, Any], path: str) -> None:
    """Only the owner of a network namespace may mount /sys, and here that is the host's."""
    for mount in document["mounts"]:
        if mount["type"] == "sysfs":
            os.mkdir(path)
            kernel.mount("sysfs", path, "sysfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
            mount |= {"type": "bind", "source": path, "options": ["rbind", *mount["options"]]}
            keep_locked_flags(mount)


def keep_locked_flags(mount: dict[str, Any]) -> None:
    """Give a bind of a config.json the flags of its source, which no user namespace may take away. Raises OSError."""
    flags = os.statvfs(mount["source"]).f_flag
    locked = [name for bit, name in _LOCKED.items() if flags & bit]
    mount["options"] = [one for one in mount["options"] if one not in locked and (one, "ro" in locked) != ("rw", True)]
    mount["options"] += locked


def _place(needed: Sequence[str]) -> str:
    kept = [os.path.realpath(path) for path in (*needed, sys.prefix, sys.base_prefix, __file__)]
    for place in _PLACES:
        passable = os.path.isdir(place) and os.path.realpath(place) == place and os.stat(place).st_mode & 1
        if passable and not any(f"{path}/".startswith(f"{place}/") for path in kept):
            return place
    raise RunError(f"--userns needs one of {', '.join(_PLACES)} as an empty place for mounts", hint="mkdir -m 755 /mnt")


def _map(descriptor: int, user_namespace: int, subject: str, hint: str) -> None:
    try:
        kernel_mounts.set_idmap(descriptor, user_namespace)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise RunError("--userns needs idmapped mounts, of Linux 5.19 or later") from error
        if error.errno != errno.EINVAL:
            raise
        raise RunError(f"{subject}, which can be shown to no user namespace", hint=hint) from error


def _fstype(path: str) -> str:
    return max(
        (
            one
            for one in reversed(kernel.mounts())
            if f"{os.path.realpath(path)}/".startswith(f"{one.path.rstrip('/')}/")
        ),
        key=lambda one: len(one.path),
    ).fstype
