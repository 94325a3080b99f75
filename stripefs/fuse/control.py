"""Control client: it finds the mounts of this user and sends requests to their workers.

A supervisor keeps two files for its mount in a directory, `runtime_directory()` unless its spec names another:
`NAME.sock`, on which its worker answers (see `stripefs.fuse.control_server`), and `NAME.json` with mountpoint, source
and the supervisor's pid. NAME is made from the mountpoint unless the spec has one. Files that a killed supervisor left
are removed when they are found. A request and its answer are one JSON object each.

`metrics_listener` is the socket of the metrics, which the supervisor opens as it does that of the control files.

Loads little, because commands that ask are to start at once.
"""

from __future__ import annotations

import _socket  # `socket` above it takes longer to load than all the rest of this module
import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator

from stripefs.errors import ConfigError, MountError
from stripefs.osutil import user_runtime
from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    import socket
    from pathlib import Path
    from typing import Any

__all__ = [
    "TIMEOUT",
    "ControlFiles",
    "Mount",
    "address",
    "ask",
    "find_mounts",
    "log_file",
    "make_directory",
    "metrics_listener",
    "query",
    "runtime_directory",
]


def metrics_listener(address: str, held: contextlib.ExitStack) -> list[socket.socket]:
    """The listening socket at HOST:PORT, if any. Raises ConfigError when others could reach it or it is taken."""
    if not address:
        return []
    import socket

    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        if not (str(where[0]) == "::1" or str(where[0]).startswith("127.")):
            raise ConfigError(f"metrics address {address} is not a loopback address", hint="use 127.0.0.1:PORT")
        listener = held.enter_context(socket.socket(family, kind, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(64)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"metrics cannot be served at {address}: {error}", hint="use 127.0.0.1:PORT") from error
    return [listener]


TIMEOUT = 10.0
_ASK_AGAIN = 0.05


def ask(
    path: str | Path,
    request: dict[str, Any],
    timeout: float = TIMEOUT,
    *,
    what: str,
    deaths: int = 0,
    meanwhile: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Send a request to the socket at `path`; the answer. `what` names the server in messages.

    timeout in seconds covers a worker that is being replaced; one that dies over its answer is asked again through the
    next, so a request must bear being asked twice. deaths: give up after so many, lest a request that kills workers
    ends the mount; 0 for never. meanwhile: work for the time in which the answer is made; called each time that the
    request was sent. Raises FileNotFoundError when nobody listens there, MountError when no answer comes, and the error
    that the answer carries.
    """
    end = time.monotonic() + timeout
    cut_off = 0
    while True:
        try:
            answer: dict[str, Any] = json.loads(_ask(path, request, max(0.1, end - time.monotonic()), meanwhile))
            break
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if cut_off and request["op"] == "stop":
                return {"v": 1, "stopping": True}  # it stopped before its answer was out
            raise FileNotFoundError(str(path)) from error
        except (ConnectionResetError, BrokenPipeError) as error:
            cut_off += 1
            if time.monotonic() > end or cut_off == deaths:
                raise _no_answer(what, error) from error
            time.sleep(_ASK_AGAIN)
        except (OSError, ValueError) as error:
            raise _no_answer(what, error) from error
    if "failed" in answer:
        from stripefs.fuse.ipc import rebuild_error

        raise rebuild_error(answer["failed"])
    if "error" in answer:
        raise MountError(f"{what} refused: {answer['error']}")
    return answer


def _ask(path: str | Path, request: dict[str, Any], timeout: float, meanwhile: Callable[[], None] | None) -> bytes:
    """One request and its answer. Raises OSError; ConnectionResetError when the answer ends before it is whole."""
    answer = b""
    with contextlib.closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)) as client:
        client.settimeout(timeout)
        with address(path) as short:
            client.connect(short)
        client.sendall(json.dumps({"v": 1, **request}).encode() + b"\n")
        if meanwhile is not None:
            meanwhile()
        while not answer.endswith(b"\n") and (chunk := client.recv(1 << 16)):  # one line: its end needs no other wait
            answer += chunk
    if not answer.endswith(b"\n"):
        raise ConnectionResetError(errno.ECONNRESET, "the answer was cut off")
    return answer


def _no_answer(what: str, error: Exception) -> MountError:
    return MountError(f"{what} does not answer: {error}", hint="see its log")


@contextlib.contextmanager
def address(path: str | Path) -> Iterator[str]:
    """A socket's path in fewer than the 108 bytes that a socket address holds, however long the directory's is."""
    folder, name = os.path.split(path)
    directory = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)


_OTHERS = 0o077


class Mount(NamedTuple):
    """A mount that a living supervisor serves."""

    mountpoint: str
    source: str
    supervisor_pid: int


def runtime_directory() -> Path:
    """/run/bootseer/stripefs for root, $XDG_RUNTIME_DIR/bootseer/stripefs for others, else one in /tmp."""
    from pathlib import Path  # which takes long to load, and clients of a socket that is named do without

    uid = os.getuid()
    if (base := user_runtime(os.environ, uid)) is not None:
        return Path(base) / "bootseer" / "stripefs"
    if uid == 0:
        return Path("/run/bootseer/stripefs")
    # Right below /tmp, whose sticky bit keeps others from swapping it; owner and mode are checked before use.
    return Path(f"/tmp/bootseer-stripefs-{uid}")  # noqa: S108


def make_directory(directory: Path) -> Path:
    """The directory, for this user alone, made with its parents when it is not there.

    Of the default runtime directories, those that are this user's are closed to others where they were open. Raises
    MountError when the directory is someone else's, is open to others anywhere else, or cannot be made.
    """
    ours = _default_root()
    try:
        for folder in (*reversed(directory.parents), directory):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
            elif folder == ours or ours in folder.parents:
                _close_to_others(folder)
        found = os.lstat(directory)
    except OSError as error:
        raise MountError(f"{directory} cannot be made: {error.strerror}", hint="set XDG_RUNTIME_DIR") from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise MountError(f"{directory} belongs to someone else", hint="set XDG_RUNTIME_DIR")
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        raise MountError(f"{directory} is open to other users", hint=f"chmod 700 {directory}, or name another folder")
    return directory


def _default_root() -> Path:
    """The uppermost directory that the commands make for themselves: `bootseer`, or the one right below /tmp."""
    directory = runtime_directory()
    return directory.parent if directory.parent.name == "bootseer" else directory


def _close_to_others(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & _OTHERS:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


class ControlFiles:
    """The two files of one mount, for its supervisor. `listener` is the control socket."""

    def __init__(self, mountpoint: str, directory: Path | None = None, name: str = "") -> None:
        import socket

        self._socket, self._description = _files(make_directory(directory or runtime_directory()), mountpoint, name)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.unlink(missing_ok=True)
            with address(self._socket) as short:
                self.listener.bind(short)
            self._socket.chmod(0o600)
            self.listener.listen(64)
            self._identity = _identity(self._socket)
        except OSError as error:
            self.listener.close()
            raise MountError(f"control socket {self._socket} cannot be made: {error}") from error

    @property
    def keeper(self) -> Path:
        """Socket of the keeper of the mount, if it has one."""
        return self._socket.with_suffix(".keeper")

    def announce(self, mount: Mount) -> None:
        temporary = self._description.with_suffix(".draft")
        temporary.write_text(json.dumps(mount._asdict()))
        temporary.rename(self._description)

    def close(self) -> None:
        """Stop listening and remove the files, unless a newer mount at the same place has its own there."""
        self.listener.close()
        if _identity(self._socket) == self._identity:
            self._description.unlink(missing_ok=True)
            self._socket.unlink(missing_ok=True)


def log_file(mountpoint: str, directory: Path | None = None, name: str = "") -> Path:
    """The default log file of a background mount."""
    return _files(make_directory(directory or runtime_directory()), mountpoint, name)[0].with_suffix(".log")


def find_mounts(directory: Path | None = None) -> list[Mount]:
    """The mounts of this user that are served now, by mountpoint; those whose files are in `directory`."""
    found = []
    directory = directory or runtime_directory()
    for description in sorted(directory.glob("*.json")) if directory.is_dir() else []:
        try:
            mount = Mount(**json.loads(description.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # removed meanwhile
        listener = description.with_suffix(".sock")
        before = _identity(listener)
        if _listens(listener):
            found.append(mount)
        elif _identity(listener) == before:  # else a new mount has just made its own
            description.unlink(missing_ok=True)
            listener.unlink(missing_ok=True)
    return sorted(found, key=lambda mount: mount.mountpoint)


def query(
    mountpoint: str, operation: str, timeout: float = TIMEOUT, *, directory: Path | None = None, name: str = ""
) -> dict[str, Any]:
    """Ask the mount at `mountpoint` (as `find_mounts` spells it) for `status`, or to `stop`; timeout as for `ask`.

    Raises MountError when nobody serves that mountpoint or no answer comes.
    """
    path = _files(directory or runtime_directory(), mountpoint, name)[0]
    try:
        return ask(path, {"op": operation}, timeout, what=f"the mount at {mountpoint}")
    except FileNotFoundError as error:
        raise MountError(
            f"{mountpoint} is not served by stripefs for this user", hint="stripefs status lists the mounts"
        ) from error


def _files(directory: Path, mountpoint: str, name: str = "") -> tuple[Path, Path]:
    if not name:
        import hashlib  # which takes longer to load than all the rest of this module

        name = hashlib.blake2b(os.fsencode(mountpoint), digest_size=8).hexdigest()
    return directory / f"{name}.sock", directory / f"{name}.json"


def _identity(path: Path) -> tuple[int, int] | None:
    """Identity of this socket among those at the same path; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def _listens(path: Path) -> bool:
    with contextlib.closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)) as client:
        client.settimeout(TIMEOUT)
        try:
            with address(path) as short:
                client.connect(short)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # a full backlog or no permission: someone is there
    return True
