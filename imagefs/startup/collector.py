"""Copies the events of a spool folder to the collector folder, which any store that can be written to may hold.

docs/startup-events.md tells the names of the objects. Every pass adds the lines that no part holds yet, whatever
earlier passes copied and rotation has deleted since, and replaces the last part as a whole: a reader never sees half of
one. So passes may be repeated, and may run while processes write; a lock lets one collector of a spool work at a time.

The spool is only read, but for the file `.id`. A pass that fails has changed whole parts or nothing, and the next one
makes up for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from imagefs.startup.sources import component, open_regular
from stripefs.errors import ConfigError, NotFound, Transient
from stripefs.osutil import try_flock
from stripefs.store.base import Store

__all__ = ["Collected", "Collector", "object_name"]

PART_BYTES = 16 << 20


class Collected(NamedTuple):
    """The counts of a pass: files that had something new, new events, objects that were written, lines that are no
    events, which stay in the spool alone, and files that may not be read or are none."""

    files: int = 0
    events: int = 0
    objects: int = 0
    unreadable: int = 0
    refused: int = 0


class Collector:
    """Of one spool, for one thread. Between passes it remembers how far it has read."""

    def __init__(self, spool: str, store: Store, *, part_bytes: int = PART_BYTES, patience: float = 30.0) -> None:
        """patience: seconds to wait for another collector of this spool. Raises ConfigError for a store that cannot be
        written to, or a spool that is not there."""
        if not store.capabilities.put:
            raise ConfigError(f"{store.url} cannot be written to", hint="collect into a folder, HDFS or a bucket")
        self._spool, self._store, self._patience, self._part_bytes = spool, store, patience, part_bytes
        with _folder(spool):
            self._id = _id_of(spool)
        self._read: dict[str, int] = {}
        self._refused: set[str] = set()
        self._objects: dict[str, _Object] = {}

    def run(self) -> Collected:
        """One pass. Raises StoreErrors, after which the next pass begins anew."""
        with _folder(self._spool) as descriptor:
            if not try_flock(descriptor, self._patience):  # held until the descriptor is closed
                raise Transient(f"another collector is at work on {self._spool}", hint="it copies the same events")
            try:
                return self._run()
            except BaseException:
                self._read.clear()
                self._objects.clear()
                raise

    def _run(self) -> Collected:
        read: dict[str, int] = {}
        fresh: dict[str, list[bytes]] = {}
        files = unreadable = 0
        refused = len(self._refused)
        for name, data in self._new():
            files += 1
            read[name] = self._read.get(name, 0) + len(data)
            for line in data.splitlines(keepends=True):
                where = object_name(line)
                if where:
                    fresh.setdefault(where, []).append(line)
                else:
                    unreadable += 1
        events = objects = 0
        for where, lines in fresh.items():
            if where not in self._objects:
                self._objects[where] = _Object(self._store, f"{where}.{self._id}", self._part_bytes)
            added, written = self._objects[where].add(lines)
            events, objects = events + added, objects + written
        self._read.update(read)
        return Collected(files, events, objects, unreadable, len(self._refused) - refused)

    def _new(self) -> Iterator[tuple[str, bytes]]:
        """The whole lines that each file has gained. No two files of a spool ever have the same name."""
        for name in sorted(os.listdir(self._spool)):
            if not name.endswith(".jsonl"):
                continue
            try:
                path = os.path.join(self._spool, name)
                with open(path, "rb", opener=lambda path, flags: open_regular(path, flags | os.O_NOFOLLOW)) as file:
                    file.seek(self._read.get(name, 0))
                    data = file.read()
            except FileNotFoundError:
                continue
            except OSError:  # of another user, a link, which may lead out of the spool, or no file: it hides no other
                self._refused.add(name)
                continue
            if whole := data.rfind(b"\n") + 1:
                yield name, data[:whole]


class _Object:
    """The parts of one start of one node."""

    def __init__(self, store: Store, stem: str, part_bytes: int) -> None:
        self._store, self._stem, self._part_bytes = store, stem, part_bytes
        self._number, self._last = 0, b""
        self._seen: set[int] = set()
        with contextlib.suppress(NotFound):
            while True:
                self._last = bytes(store.get(self._path(self._number)))
                self._seen.update(map(hash, self._last.splitlines(keepends=True)))
                self._number += 1
        self._number = max(self._number - 1, 0)

    def add(self, lines: list[bytes]) -> tuple[int, int]:
        """Have these lines in the object; how many are new, and how many parts were written."""
        added = written = 0
        pending = [self._last]
        size = len(self._last)
        for line in lines:
            if hash(line) in self._seen:
                continue
            if size and size + len(line) > self._part_bytes:
                written += self._put(b"".join(pending))
                self._number, self._last, pending, size = self._number + 1, b"", [], 0
            self._seen.add(hash(line))
            pending.append(line)
            size += len(line)
            added += 1
        return added, written + self._put(b"".join(pending))

    def _put(self, data: bytes) -> int:
        if data == self._last:
            return 0
        self._store.put(self._path(self._number), [data], replace=True)
        self._last = data
        return 1

    def _path(self, number: int) -> bytes:
        return f"/{self._stem}.{number}.jsonl".encode()


def object_name(line: bytes) -> str:
    """JOB/RUN/NODE of the start to which an event belongs, "" for a line that is no event."""
    try:
        event = json.loads(line)
        if not isinstance(event["stage"], str) or not isinstance(event["event"], str):
            return ""
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return "/".join(component(str(event.get(key, ""))) for key in ("job", "run", "node"))


@contextlib.contextmanager
def _folder(spool: str) -> Iterator[int]:
    try:
        descriptor = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"{spool} is no spool folder: {error.strerror}", hint="name the one of BOOTSEER_EVENTS"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _id_of(spool: str) -> str:
    """The id that the spool keeps; of one that cannot be written to, one that its inode has."""
    path = os.path.join(spool, ".id")
    try:
        if not os.path.exists(path):
            fresh = f"{path}.{secrets.token_hex(4)}"
            with open(fresh, "x", encoding="ascii") as file:
                file.write(secrets.token_hex(4))
            with contextlib.suppress(FileExistsError):  # another collector was faster
                os.link(fresh, path)
            os.unlink(fresh)
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        found = os.stat(spool)
        return f"{found.st_dev:x}-{found.st_ino:x}"
    if not text.isalnum():
        raise ConfigError(f"{path} holds no id", hint="remove it")
    return text
