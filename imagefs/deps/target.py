"""The directory that is installed into, on a host: whose turn it is, what is in it, and whether that is ours.

A node that missed has what it installed in the directory itself. A mark in the cache says of which key that is, so that
the next start takes it as it is, and one with another key knows that it may be emptied. What the mark does not know of
is never touched:

    CACHE/deps/targets/HASH.json    path, key, the directory's device and inode, whether it was finished, who uses it
    CACHE/deps/targets/HASH.files   of each file in a finished one 8 bytes that change with it, sorted
    CACHE/deps/targets/HASH.users   of what is mounted there: its key, and the processes that use it
    CACHE/deps/targets/HASH.lock    who holds it has the turn at this path

HASH is that of the path. Files that come later beside finished ones do no harm: programs keep caches among their
modules.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from imagefs.daemon import processes
from imagefs.deps import inventory
from imagefs.errors import SnapshotError
from stripefs.appearing import appearing
from stripefs.errors import StripefsError
from stripefs.mount import kernel

__all__ = ["Refused", "State", "Target", "User"]

User = tuple[int, int]
"""A process, and when it began."""

_PAUSE = 0.05
_PATIENCE = 1.0
"""Seconds after which somebody who waits for the turn is told."""


class Refused(StripefsError):
    """The target cannot be installed into at all, with a snapshot or without."""

    exit_code = 2


class State(Enum):
    """What a directory is for one key."""

    EMPTY = "empty"  # or not there, or a mountpoint of ours
    FINISHED = "finished"  # what this key installs, unchanged
    CHANGED = "changed"  # that, but files of it were changed or removed
    OURS = "ours"  # of another key, or never finished; nobody uses it
    IN_USE = "in use"  # of another key, and somebody does
    FOREIGN = "foreign"  # with files that we know nothing of


class Target:
    """The directory at `path`, absolute with links resolved; `cache` is that of the daemon. Calls raise OSError."""

    def __init__(self, path: str, cache: str) -> None:
        self.path = path
        self.cache = cache
        self._mark = Path(cache, "deps/targets", hashlib.sha256(os.fsencode(path)).hexdigest())

    @contextlib.contextmanager
    def turn(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Nobody else of this cache mounts there, installs or looks meanwhile. `waiting` is called when that lasts."""
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._mark.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _taken(descriptor, _PATIENCE):
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # What is there

    def state(self, key: str) -> State:
        """What it is for the snapshot `key`. Raises Refused for a path that is no directory."""
        if (here := kernel.find_mount(self.path)) is not None and here.fstype in ("erofs", "fuse.imagefs"):
            return State.EMPTY
        try:
            found = os.stat(self.path)
            empty = not os.listdir(self.path)
        except FileNotFoundError:
            return State.EMPTY
        except NotADirectoryError as error:
            raise Refused(f"{self.path} is no directory", hint="name another --target") from error
        if empty:
            return State.EMPTY
        mark = self._read()
        if mark is None or (mark["device"], mark["inode"]) != (found.st_dev, found.st_ino):
            return State.FOREIGN
        if mark["key"] == key and mark["finished"]:
            return State.CHANGED if self._gone() else State.FINISHED
        return State.IN_USE if _living(mark["users"]) else State.OURS

    def users(self) -> list[int]:
        """The processes that use what is in it, as far as they told."""
        mark = self._read()
        return [process for process, _ in _living(mark["users"])] if mark is not None else []

    # What is done with it

    def begin(self, key: str) -> None:
        """Make it where it is missing; from now on what is in it is ours, and of that key."""
        os.makedirs(self.path, exist_ok=True)
        found = os.stat(self.path)
        self._files.unlink(missing_ok=True)
        self._write(
            {
                "path": self.path,
                "key": key,
                "device": found.st_dev,
                "inode": found.st_ino,
                "finished": False,
                "users": [],
            }
        )

    def finish(self, users: Sequence[User], seen: inventory.Inventory) -> None:
        """What was begun is whole, as it was `seen`, and used by these."""
        mark = self._read()
        if mark is None:
            raise SnapshotError(
                f"the mark of {self.path} is gone", hint=f"somebody removed it from {self._mark.parent}"
            )
        with appearing(self._files) as file:
            file.write(_prints(seen).tobytes())
        self._write({**mark, "finished": True, "users": [*mark["users"], *users]})

    def join(self, users: Sequence[User]) -> None:
        """These use what is in it."""
        mark = self._read()
        if mark is not None:
            self._write({**mark, "users": [*_living(mark["users"]), *users]})

    def changes(self) -> list[str]:
        """Files that came, went or changed since it was finished, by name as far as they are there."""
        seen, known = inventory.take(self.path), set(self._known())
        prints = {path: _print(path, facts) for path, facts in seen.entries.items() if not facts.is_directory}
        changed = sorted(path for path, one in prints.items() if one not in known)
        return changed or (["a file that was removed"] if known - set(prints.values()) else [])

    def mounted_for(self, key: str) -> list[User]:
        """Who uses what is mounted here for this key: a daemon that was killed has forgotten them."""
        try:
            noted = json.loads(self._mark.with_suffix(".users").read_text())
            return _living(noted["users"]) if noted["key"] == key else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def note_mounted(self, key: str, users: Sequence[User]) -> None:
        """For `mounted_for`."""
        with appearing(self._mark.with_suffix(".users")) as file:
            file.write(json.dumps({"key": key, "users": users}).encode())

    def clear(self) -> None:
        """Empty a directory that is `State.OURS`. Raises Refused where others have put files there."""
        mark = self._read()
        if mark is None:
            return
        if mark["finished"]:
            strange = [path for path in self.changes() if "__pycache__/" not in path]
            if strange:
                raise Refused(
                    f"{self.path} holds files that came later or were changed, such as {strange[0]}",
                    hint="move them away, or name another --target",
                )
        with os.scandir(self.path) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def _gone(self) -> bool:
        """Whether files that were there when it was finished are not, or not as they were."""
        return not set(self._known()) <= set(_prints(inventory.take(self.path)))

    # The mark

    @property
    def _files(self) -> Path:
        return self._mark.with_suffix(".files")

    def _known(self) -> array[int]:
        known = array("Q")
        with contextlib.suppress(FileNotFoundError):
            known.frombytes(self._files.read_bytes())
        return known

    def _read(self) -> dict[str, Any] | None:
        """None where there is none, or one that cannot be read."""
        try:
            mark: dict[str, Any] = json.loads(self._mark.with_suffix(".json").read_text())
            return mark if mark["path"] == self.path else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, mark: dict[str, Any]) -> None:
        with appearing(self._mark.with_suffix(".json")) as file:
            file.write(json.dumps(mark).encode())


def _taken(descriptor: int, patience: float) -> bool:
    """Whether the lock was to be had within so many seconds."""
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(_PAUSE)
        else:
            return True


def _living(users: Sequence[Sequence[int]]) -> list[User]:
    return [(process, began) for process, began in users if began and processes.began(process) == began]


def _prints(seen: inventory.Inventory) -> array[int]:
    return array("Q", sorted(_print(path, facts) for path, facts in seen.entries.items() if not facts.is_directory))


def _print(path: str, facts: inventory.Facts) -> int:
    """A number that is another one when the file was changed, moved or replaced."""
    text = f"{path}\0{facts}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
