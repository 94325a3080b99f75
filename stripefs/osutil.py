"""Operating system primitives: atomic files, file locks, errors of C functions, signal masks, local directories.

Open-file-description locks (fcntl(2), F_OFD_…) cover byte ranges and belong to one open file, so two users in one
process exclude each other. They end when the file is closed, also by the death of the process, and the locked bytes
need not exist. A forked child has the same open file and would keep the locks when its parent is gone, so `ours` is
false in a child.

No local directory that files are kept in may lie on a mount of stripefs or imagefs. A worker that touched a file on the
mount it serves would wait for itself, and two mounts that keep files on each other would wait for one another. So a
path is walked one name at a time, links by hand, and each step is held against the mount table *before* the file system
there is asked anything.

`option` is how messages name the setting that the directory came from.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping

from stripefs.errors import ConfigError

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = [
    "atomic_file",
    "check",
    "die_with_parent",
    "flocked",
    "has_terminal",
    "is_locked",
    "not_ours",
    "open_local_dir",
    "ours",
    "remove_tree",
    "resolve_local_dir",
    "share",
    "signals_for_main",
    "try_flock",
    "try_lock",
    "umask",
    "unlock",
    "user_runtime",
    "write_output",
]


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], beginning: str = ".", mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` as a whole when that was done. Raises OSError.

    It is for its owner alone, unless `mode` less the umask says otherwise. It is not synced, so whoever reads it after
    a power cut must be able to tell. A process that is killed meanwhile leaves a file beside it, whose name starts with
    `beginning`.
    """
    draft = os.path.join(os.path.dirname(path), f"{beginning}{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(draft)
        raise


def write_output(path: str | os.PathLike[str], texts: Iterable[str]) -> None:
    """Write a file that a user named. Raises OSError.

    A regular file, or that which a link leads to, is replaced as a whole. Anything else, such as a pipe or a device, is
    written to and stays what it is.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as place:
            place.writelines(texts)
        return
    with atomic_file(os.path.realpath(path), mode=0o666) as file:
        file.writelines(text.encode() for text in texts)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a directory with all that is in it. Links are removed and not followed, also where somebody makes one
    meanwhile. Raises OSError.

    As `shutil.rmtree`, which takes three milliseconds to load.
    """

    def fail(error: OSError) -> None:
        raise error

    for _, folders, others, folder in os.fwalk(path, topdown=False, onerror=fail):
        for name in others:
            os.unlink(name, dir_fd=folder)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=folder)
            except NotADirectoryError:  # a link to one
                os.unlink(name, dir_fd=folder)
    os.rmdir(path)


_PR_SET_PDEATHSIG, _SIGKILL = 1, 9  # include/uapi/linux/prctl.h, asm/signal.h
_FLOCK = struct.Struct("hhqqi0q")  # struct flock of Linux where off_t has 64 bits


def try_lock(descriptor: int, start: int, length: int = 1) -> bool:
    """Lock these bytes for writing unless another open file holds some of them. Raises OSError."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, start, length))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def share(descriptor: int, start: int, length: int = 1) -> None:
    """Lock these bytes for reading, as any number of open files may at once. Raises OSError."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, start, length))


def unlock(descriptor: int, start: int, length: int = 1) -> None:
    """Let go of what of these bytes this open file holds. Raises OSError."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, start, length))


def is_locked(descriptor: int, start: int, length: int = 1) -> bool:
    """True if another open file holds some of these bytes. Raises OSError."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, start, length))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


_PAUSE = 0.05  # seconds between two tries to take a lock


@contextlib.contextmanager
def flocked(path: str | os.PathLike[str], flags: int = os.O_RDWR | os.O_CREAT, *, wait: bool = True) -> Iterator[int]:
    """Hold the lock of flock(2) on a file, or with other `flags` a directory; answers its descriptor. Raises OSError,
    BlockingIOError where somebody else has the lock and `wait` is false."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def try_flock(descriptor: int, patience: float = 0.0) -> bool:
    """Take the lock of flock(2) unless another open file has it for so many seconds. Raises OSError."""
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(_PAUSE)
        else:
            return True


_ours: set[int] = set()


def ours(descriptor: int) -> None:
    """Children that are forked from now on have nothing under this number, until `not_ours`."""
    _ours.add(descriptor)


def not_ours(descriptor: int) -> None:
    """The descriptor is about to be closed."""
    _ours.discard(descriptor)


def _forked() -> None:
    """Keep the numbers taken: a descriptor that the parent's objects would close here must be nobody else's file."""
    if _ours:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in _ours:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _ours.clear()


os.register_at_fork(after_in_child=_forked)


def _lock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def check(result: int, subject: str | None = None) -> int:
    """The result of a function of the C library, called by ctypes with errno. Raises OSError where it is below zero."""
    if result < 0:
        import ctypes  # loaded by the caller

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
    return result


@contextlib.contextmanager
def signals_for_main() -> Iterator[None]:
    """Threads that begin in the block, by our hand or that of a library, take no signals: the main thread may be about
    to wait for them, beside a container or an installer."""
    import signal  # rarely needed, and not for free

    faults = {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
    }  # of the thread that made them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(parent: int) -> None:
    """Be killed when the thread of process `parent` that started us ends; exit at once when `parent` already has.

    Raises OSError.
    """
    import ctypes  # rarely needed, and not for free

    check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def has_terminal() -> bool:
    """True if this process has a terminal, whose end SIGHUP then means."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def umask() -> int:
    """Permission bits that new files and directories are not to have."""
    with open("/proc/self/status", "rb") as file:  # since Linux 4.7; os.umask would change it for other threads
        return next((int(line[6:], 8) for line in file if line.startswith(b"Umask:")), 0o022)


_OURS = ("fuse.stripefs", "fuse.imagefs")
_LINKS = 40  # as many as the kernel follows


def user_runtime(environ: Mapping[str, str], uid: int) -> str | None:
    """$XDG_RUNTIME_DIR where it counts: for users, and for the root of a user namespace, to whom /run belongs no more
    than to the user who made it. None where it is not set."""
    base = environ.get("XDG_RUNTIME_DIR") or None
    return base if uid != 0 or _in_user_namespace() else None


def _in_user_namespace() -> bool:
    """False in the first one, which maps all numbers to themselves."""
    try:
        with open("/proc/self/uid_map") as table:
            return table.read().split() != ["0", "0", "4294967295"]
    except FileNotFoundError:
        return False  # a kernel without them


def resolve_local_dir(option: str, directory: str, mountpoint: str) -> str:
    """`directory`, which may be missing still, without links; it is not touched.

    Raises ConfigError where it cannot be walked, or is on a mount of ours or on the one at `mountpoint` ("" for none).
    """
    place = _resolve(option, directory, _mounts(), missing=True)
    if mountpoint:
        # Where the mount will be, or is: its own last component is not asked anything then.
        above, name = os.path.split(os.path.abspath(mountpoint))
        served = os.path.join(_resolve(option, above, _mounts()), name)
        if os.path.commonpath((place, served)) == os.path.normpath(served):
            raise ConfigError(f"{option} {directory} is on the mount itself", hint="name a directory on a local disk")
    return place


def open_local_dir(option: str, directory: str, mountpoint: str) -> int:
    """A descriptor of `directory`, which must exist and be writable; else as `resolve_local_dir`. The caller closes
    it."""
    place = resolve_local_dir(option, directory, mountpoint)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(option, directory, error) from error
    if not os.access(f"/proc/self/fd/{descriptor}", os.W_OK | os.X_OK):
        os.close(descriptor)
        raise _unusable(option, directory, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return descriptor


def _unusable(option: str, directory: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{option} {directory} cannot be used: {error.strerror}", hint="name a directory that exists and is yours"
    )


def _resolve(option: str, path: str, mounts: dict[str, str], *, missing: bool = False) -> str:
    """`path` without links; with `missing` its last names need not be there."""
    done, rest, links = "/", [name for name in os.path.abspath(path).split("/") if name], 0
    while rest:
        name = rest.pop(0)
        if name == "..":
            done = os.path.dirname(done)
            continue
        step = os.path.join(done, name)
        if mounts.get(step) in _OURS:
            raise ConfigError(
                f"{option} {path} is on a mount of {mounts[step].removeprefix('fuse.')}, {step}",
                hint="name a directory on a local disk",
            )
        try:
            target = os.readlink(step)
        except OSError as error:
            if error.errno == errno.ENOENT and missing and ".." not in rest:
                return os.path.join(step, *rest)
            if error.errno != errno.EINVAL:  # which says that it is no link
                raise _unusable(option, path, error) from error
            done = step
            continue
        links += 1
        if links > _LINKS:
            raise _unusable(option, path, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
        rest = [name for name in target.split("/") if name not in ("", ".")] + rest
        done = "/" if target.startswith("/") else done
    return done


def _mounts() -> dict[str, str]:
    """Mountpoint -> file system type; of several at one place the last, which is on top."""
    found = {}
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        lines = table.read().splitlines()
    for line in lines:
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        found[place] = after.split(" ")[0]
    return found
