"""The target directory of an installation on a host: whose turn it is, what is in it, and whether that is ours.

A node that missed has what it installed in the directory itself. A mark in the cache says of which key that is, so that
the next start takes it as it is, and one with another key knows that it may be emptied. Files that the mark does not
know of are never touched:

    CACHE/deps/targets/HASH.json    the mark
    CACHE/deps/targets/HASH.begun   there while the directory is installed into, or emptied; what is in it may go
    CACHE/deps/targets/HASH.files   of each file in a finished one 8 bytes that change with it, sorted
    CACHE/deps/targets/HASH.users   of what is mounted there: its key, and the processes that use it
    CACHE/deps/targets/HASH.lock    who holds it has the turn at this path

HASH is that of the path. Files that come later beside finished ones do no harm: programs keep caches among their
modules.

A directory that was put in its place has nothing of what was installed. Numbers of devices change with a reboot,
and with each mount of an overlay, and the number of an inode is soon given to the next directory. So a directory gets
an extended attribute with a random value; where the file system has no such attributes its device and inode count.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from imagefs.daemon import processes
from imagefs.deps import inventory
from imagefs.errors import SnapshotError
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from stripefs.fuse.mounting import users
from stripefs.osutil import atomic_file, try_flock

__all__ = ["ATTRIBUTE", "Mark", "TargetDirectory", "TargetRefused", "TargetState", "TargetUser", "identity_of"]

TargetUser = tuple[int, int]
"""A process, and when it began."""

ATTRIBUTE = "user.imagefs.target"
"""Tells a directory from another one that is put in its place."""


class Mark(NamedTuple):
    """path: of the directory. directory: which one that is. key: what was installed there. finished: whether all of it
    is there, and known. users: who uses it."""

    path: str
    directory: str
    key: str
    finished: bool
    users: Sequence[TargetUser]


def _load_mark(path: Path) -> Mark | None:
    """The mark in a file; None where there is none, or one that makes no sense."""
    try:
        told = json.loads(path.read_text())
        users = [(int(process), int(began)) for process, began in told["users"]]
        mark = Mark(told["path"], told["directory"], told["key"], told["finished"] is True, users)
        return mark if all(isinstance(one, str) for one in mark[:3]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _save_mark(path: Path, mark: Mark) -> None:
    """Raises OSError."""
    with atomic_file(path) as file:
        file.write(json.dumps(mark._asdict()).encode())


def _living_users(users: Sequence[Sequence[int]]) -> list[TargetUser]:
    """The users that have not ended. Raises ValueError for other data."""
    return [(process, began) for process, began in users if began and processes.began(process) == began]


def identity_of(path: str) -> str:
    """The identity of the directory at `path`. Raises OSError."""
    there = os.stat(path)
    with contextlib.suppress(OSError):  # it has none, or the file system knows of none
        return f"label {os.getxattr(path, ATTRIBUTE).decode(errors='replace')}"
    return f"inode {there.st_dev} {there.st_ino}"


def _label_directory(path: str) -> str:
    """Give the directory at `path` a label that no other one has, as far as its file system can; `which` it is then.
    Raises OSError."""
    with contextlib.suppress(OSError):
        os.setxattr(path, ATTRIBUTE, secrets.token_hex(16).encode())
    return identity_of(path)


_PATIENCE = 1.0
"""Seconds after which somebody who waits for the turn is told."""


class TargetRefused(StripefsError):
    """The target cannot be installed into at all, with a snapshot or without."""

    exit_code = 2


class TargetState(Enum):
    """The state of a directory for one key."""

    EMPTY = "empty"  # or not there, or a mountpoint of ours
    FINISHED = "finished"  # the packages of this key, unchanged
    CHANGED = "changed"  # that, but files of it were changed or removed
    UNSURE = "unsure"  # left by the command of this key, perhaps in part
    OURS = "ours"  # of another key, or never finished; nobody uses it
    IN_USE = "in use"  # of another key, and somebody does
    FOREIGN = "foreign"  # with files that we know nothing of


class TargetDirectory:
    """The directory at `path`, absolute with links resolved; `cache` is that of the daemon. Calls raise OSError."""

    def __init__(self, path: str, cache: str) -> None:
        self.path = path
        self.cache = cache
        self._mark = Path(cache, "deps/targets", hashlib.sha256(os.fsencode(path)).hexdigest())

    @contextlib.contextmanager
    def locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold its lock: no other process of this cache mounts there, installs or looks meanwhile. `waiting` is called
        when that lasts."""
        os.makedirs(self.cache, 0o700, exist_ok=True)  # as the daemon makes it: its files are nobody else's business
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._mark.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not try_flock(descriptor, _PATIENCE):
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # Its state

    def state(self, key: str) -> TargetState:
        """Its state for the snapshot `key`. Raises TargetRefused for a path that is no directory."""
        if (here := kernel.find_mount(self.path)) is not None and here.fstype in ("erofs", "fuse.imagefs"):
            return TargetState.EMPTY
        try:
            if not os.listdir(self.path):
                return TargetState.EMPTY
        except FileNotFoundError:
            return TargetState.EMPTY
        except NotADirectoryError as error:
            raise TargetRefused(f"{self.path} is no directory", hint="name another --target") from error
        mark = self._own_mark()
        if mark is None:
            return TargetState.FOREIGN
        if self._begun.exists():
            return TargetState.OURS
        if not mark.finished:
            return TargetState.UNSURE if mark.key == key else TargetState.FOREIGN
        if mark.key != key:
            return TargetState.IN_USE if self.users() else TargetState.OURS
        known = self._known()
        if known is None:
            return TargetState.UNSURE
        return TargetState.FINISHED if known <= set(_prints(inventory.take(self.path))) else TargetState.CHANGED

    def users(self) -> list[str]:
        """The users of what is in it, for people to read: the processes that it was installed for, else those that
        stand or keep files there."""
        mark = self._own_mark()
        told = [f"process {process}" for process, _ in _living_users(mark.users)] if mark is not None else []
        return told or [one for one in users(self.path) if not one.startswith(f"process {os.getpid()} ")]

    # Changes of it

    def begin(self, key: str, users: Sequence[TargetUser]) -> None:
        """Make it where it is missing; from now on what is in it is ours, and of that key, for these users."""
        os.makedirs(self.path, exist_ok=True)
        self._files.unlink(missing_ok=True)
        self._begun.touch()
        _save_mark(self._json, Mark(self.path, _label_directory(self.path), key, finished=False, users=users))

    def hand_over(self) -> None:
        """Its content is its users' from now on, whole or not, and not to be emptied. Needs no room on the disk."""
        self._begun.unlink(missing_ok=True)

    def finish(self, seen: inventory.Inventory, key: str) -> None:
        """Mark it as whole, as it was `seen`, and of that key; it is handed over."""
        mark = self._own_mark()
        if mark is None:
            raise SnapshotError(
                f"the mark of {self.path} is gone", hint=f"somebody removed it from {self._mark.parent}"
            )
        with atomic_file(self._files) as file:
            file.write(_prints(seen).tobytes())
        _save_mark(self._json, mark._replace(finished=True, key=key))
        self.hand_over()

    def note_plain(self, key: str, users: Sequence[TargetUser]) -> None:
        """The command of that key fills it on its own, so nobody will know whether it is whole."""
        mark = self._own_mark()
        if mark is None or not mark.finished:
            _save_mark(self._json, Mark(self.path, _label_directory(self.path), key, finished=False, users=users))
        self.hand_over()

    def join(self, users: Sequence[TargetUser]) -> None:
        """These use what is in it."""
        mark = self._own_mark()
        if mark is not None:
            _save_mark(self._json, mark._replace(users=[*_living_users(mark.users), *users]))

    def changes(self, seen: inventory.Inventory) -> list[str]:
        """Files that came, went or changed between when it was finished and when it was `seen`, by name as far as they
        are there; `caches` do not count."""
        came, gone = self._compared(seen)
        strange = came if gone else [path for path in came if not _is_cache(path)]
        return strange or (["a file that was removed"] if gone else [])

    def caches(self, seen: inventory.Inventory) -> set[str]:
        """Files that programs have put beside finished modules for themselves, as numba and `python -O` do."""
        return set(filter(_is_cache, self._compared(seen)[0]))

    def _compared(self, seen: inventory.Inventory) -> tuple[list[str], bool]:
        """Files that are not as they were when it was finished, and whether any that was there then is gone."""
        known = self._known() or set()
        prints = {path: _print(path, facts) for path, facts in seen.entries.items() if not facts.is_directory}
        came = sorted(path for path, one in prints.items() if one not in known)
        return came, not known <= set(prints.values())

    def mounted_for(self, key: str) -> list[TargetUser]:
        """The users of what is mounted here for this key: a daemon that was killed has forgotten them."""
        try:
            noted = json.loads(self._mark.with_suffix(".users").read_text())
            return _living_users(noted["users"]) if noted["key"] == key else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def note_mounted(self, key: str, users: Sequence[TargetUser]) -> None:
        """For `mounted_for`."""
        with atomic_file(self._mark.with_suffix(".users")) as file:
            file.write(json.dumps({"key": key, "users": users}).encode())

    def clear(self) -> None:
        """Empty a directory that is `TargetState.OURS`. Raises TargetRefused where others have put files there, and
        where it cannot be done: then nobody can install there."""
        mark = self._own_mark()
        if mark is None:
            return
        if mark.finished and not self._begun.exists():
            strange = [path for path in self.changes(inventory.take(self.path)) if not _is_cache(path)]
            if strange:
                raise TargetRefused(
                    f"{self.path} holds files that came later or were changed, such as {strange[0]}",
                    hint="move them away, or name another --target",
                )
        self._begun.touch()  # a process killed from here on leaves a part of it
        try:
            _empty(self.path)
        except OSError as error:
            raise TargetRefused(
                f"{error.filename or self.path} cannot be removed: {error.strerror}",
                hint="what an earlier start installed there is in the way; name another --target",
            ) from error

    # The mark

    @property
    def _json(self) -> Path:
        return self._mark.with_suffix(".json")

    @property
    def _begun(self) -> Path:
        return self._mark.with_suffix(".begun")

    @property
    def _files(self) -> Path:
        return self._mark.with_suffix(".files")

    def _known(self) -> set[int] | None:
        """The prints of all files of a finished one, which has some; None where they are lost."""
        known = array("Q")
        try:
            known.frombytes(self._files.read_bytes())
        except (OSError, ValueError):
            return None
        return set(known) or None

    def _own_mark(self) -> Mark | None:
        """None where there is none of the directory that stands there now."""
        mark = _load_mark(self._json)
        return mark if mark is not None and mark.directory == identity_of(self.path) else None


def _is_cache(path: str) -> bool:
    return os.path.basename(os.path.dirname(path)) == "__pycache__"


def _empty(path: str) -> None:
    with os.scandir(path) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _prints(seen: inventory.Inventory) -> array[int]:
    return array("Q", sorted(_print(path, facts) for path, facts in seen.entries.items() if not facts.is_directory))


def _print(path: str, facts: inventory.FileFacts) -> int:
    """A number that is another one when the file was changed, moved or replaced; not when the host was started again,
    which may give another number to the device."""
    text = f"{path}\0{facts._replace(device=0)}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
