"""The snapshotter's database: which snapshots there are, in SQLite; and the errors that containerd gets.

One row a snapshot; its id names its directory and is never used again. A transaction is durable when it returns, so
that an answer to containerd outlives a crash; OSError says that there is no room for it. One connection serves all
threads, one transaction at a time: the calls are small, and those that change files hold no transaction meanwhile.
Names are unique among all kinds of snapshots. Each error is one kind of answer; `service` knows the status codes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stripefs.errors import StripefsError

__all__ = [
    "AlreadyExists", "FailedPrecondition", "InvalidArgument", "Kind", "Layer", "Metastore", "SnapshotNotFound",
    "SnapshotRecord", "Tree", "Usage",
]  # fmt: skip

VERSION = 1
"""Of the schema, as `PRAGMA user_version` has it."""

_SCHEMA = """
CREATE TABLE snapshot (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    name     TEXT NOT NULL UNIQUE,
    parent   INTEGER REFERENCES snapshot (id),
    kind     TEXT NOT NULL CHECK (kind IN ('view', 'active', 'committed')),
    created  INTEGER NOT NULL,
    updated  INTEGER NOT NULL,
    bytes    INTEGER NOT NULL DEFAULT 0,
    inodes   INTEGER NOT NULL DEFAULT 0,
    chain    TEXT NOT NULL DEFAULT '',
    source   TEXT NOT NULL DEFAULT '',
    manifest TEXT NOT NULL DEFAULT '',
    store    TEXT NOT NULL DEFAULT '',
    image    TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX snapshot_parent ON snapshot (parent);
CREATE TABLE label (
    snapshot INTEGER NOT NULL REFERENCES snapshot (id) ON DELETE CASCADE,
    key      TEXT NOT NULL,
    value    TEXT NOT NULL,
    PRIMARY KEY (snapshot, key)
) STRICT, WITHOUT ROWID;
"""


class AlreadyExists(StripefsError):
    """A snapshot of that name is there, or, on a Prepare for an extraction, its layer need not be fetched."""


class SnapshotNotFound(StripefsError):
    """There is no snapshot of that name."""


class InvalidArgument(StripefsError):
    """A request that no state of the snapshotter could answer."""


class FailedPrecondition(StripefsError):
    """A request that the snapshot's state does not allow."""


class Kind(Enum):
    """Of a snapshot, as containerd's filters spell it."""

    VIEW = "view"
    ACTIVE = "active"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes and inodes on the host's disk."""

    bytes: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
    """An image: its digest, and the URL of the store that has it."""

    store: str
    image: str


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an OCI image. chain: the chain id down to it. source: the image's name as it was pulled. manifest: the
    digest of its manifest for this machine's platform."""

    chain: str
    source: str
    manifest: str


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot. `parent` is a name, "" for none; times are nanoseconds since 1970.

    layer: of a lazy one, whose files are in no directory; `tree` is that of all layers down to it, None while it is not
    known.
    """

    id: int
    name: str
    parent: str
    kind: Kind
    created: int
    updated: int
    labels: Mapping[str, str]
    usage: Usage = Usage()
    layer: Layer | None = None
    tree: Tree | None = None


_SELECT = """
SELECT s.id, s.name, coalesce(p.name, ''), s.kind, s.created, s.updated, s.bytes, s.inodes,
       s.chain, s.source, s.manifest, s.store, s.image
FROM snapshot s LEFT JOIN snapshot p ON p.id = s.parent
"""

_CHAIN = f"""
WITH RECURSIVE above (id, depth) AS (
    SELECT parent, 1 FROM snapshot WHERE id = ?
    UNION ALL SELECT snapshot.parent, depth + 1 FROM above JOIN snapshot ON snapshot.id = above.id
)
{_SELECT} JOIN above ON above.id = s.id ORDER BY depth
"""  # noqa: S608  of constants


class Metastore:
    """The database at `path`. Raises StripefsError where it cannot be used; clock: nanoseconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "busy_timeout = 5000"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._migrate()
        except sqlite3.Error as error:
            raise StripefsError(f"{path} cannot be used as the snapshotter's database: {error}") from error
        except StripefsError:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    # -- reading -------------------------------------------------------------------------------------------------

    def get(self, name: str) -> SnapshotRecord:
        """Raises SnapshotNotFound."""
        with self._lock:
            return self._get(name)

    def all(self) -> list[SnapshotRecord]:
        """In the order in which they were made."""
        with self._lock:
            rows = self._connection.execute(f"{_SELECT} ORDER BY s.id").fetchall()
            labels: dict[int, dict[str, str]] = {}
            for owner, key, value in self._connection.execute("SELECT snapshot, key, value FROM label"):
                labels.setdefault(owner, {})[key] = value
        return [_snapshot(row, labels.get(row[0], {})) for row in rows]

    def chain(self, name: str) -> list[SnapshotRecord]:
        """The snapshot and its parents, the lowest last; labels of the first alone. Raises SnapshotNotFound."""
        with self._lock:
            first = self._get(name)
            above = self._connection.execute(_CHAIN, (first.id,)).fetchall()
        return [first, *(_snapshot(row, {}) for row in above)]

    def counts(self) -> dict[str, dict[str, int]]:
        """The number of snapshots of each kind, and how many of these are lazy layers or stand on a tree."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT kind, count(*), sum(chain != '' OR image != '') FROM snapshot GROUP BY kind"
            ).fetchall()
        found = {kind.value: (0, 0) for kind in Kind} | {kind: (count, lazy) for kind, count, lazy in rows}
        return {
            "snapshots": {kind: count for kind, (count, _) in found.items()},
            "lazy": {kind: lazy for kind, (_, lazy) in found.items()},
        }

    def trees(self, before: int | None = None) -> list[Tree]:
        """The trees of all snapshots, those of the oldest first. before: only of lazy layers with a lower id."""
        lower = "" if before is None else "AND chain != '' AND id < ?"
        with self._lock:
            rows = self._connection.execute(
                f"SELECT store, image FROM snapshot WHERE image != '' {lower} GROUP BY store, image ORDER BY min(id)",  # noqa: S608
                () if before is None else (before,),
            ).fetchall()
        return [Tree(store, image) for store, image in rows]

    # -- changing ------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        parent: str,
        kind: Kind,
        labels: Mapping[str, str],
        *,
        layer: Layer | None = None,
        tree: Tree | None = None,
    ) -> SnapshotRecord:
        """Add a snapshot. Raises AlreadyExists, and SnapshotNotFound or InvalidArgument for a parent not committed."""
        if not name:
            raise InvalidArgument("a snapshot has a name")
        with self._transaction():
            self._check_free(name)
            now = self._clock()
            of_layer = (layer.chain, layer.source, layer.manifest) if layer is not None else ("", "", "")
            of_tree = (tree.store, tree.image) if tree is not None else ("", "")
            made = self._connection.execute(
                "INSERT INTO snapshot (name, parent, kind, created, updated, chain, source, manifest, store, image)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (name, self._parent(parent), kind.value, now, now, *of_layer, *of_tree),
            ).lastrowid
            assert made is not None
            self._label(made, labels)
            return self._get(name)

    def found(self, name: str, tree: Tree) -> None:
        """The tree of a lazy snapshot is known from now on. Raises SnapshotNotFound."""
        with self._transaction():
            row = (tree.store, tree.image, self._get(name).id)
            self._connection.execute("UPDATE snapshot SET store = ?, image = ? WHERE id = ?", row)

    def commit(self, name: str, key: str, labels: Mapping[str, str], usage: Usage, parent: str = "") -> SnapshotRecord:
        """Let the active snapshot `key` be the committed one `name`, created now, with these labels alone.

        parent: that of the committed one where its active one had none. Raises AlreadyExists, SnapshotNotFound,
        FailedPrecondition for one that is not active, InvalidArgument.
        """
        with self._transaction():
            active = self._get(key)
            if active.kind is not Kind.ACTIVE:
                raise FailedPrecondition(f"{key} is {active.kind.value} and cannot be committed")
            if parent and active.parent and parent != active.parent:
                raise InvalidArgument(f"{key} was prepared on {active.parent}, not on {parent}")
            if name != key:
                self._check_free(name)
            below, now = self._parent(parent or active.parent), self._clock()
            self._connection.execute(
                "UPDATE snapshot SET name = ?, parent = ?, kind = 'committed', created = ?, updated = ?, bytes = ?,"
                " inodes = ? WHERE id = ?",
                (name, below, now, now, usage.bytes, usage.inodes, active.id),
            )
            self._label(active.id, labels)
            return self._get(name)

    def relabel(self, name: str, labels: Mapping[str, str]) -> SnapshotRecord:
        """Give the snapshot these labels alone. Raises SnapshotNotFound."""
        with self._transaction():
            found = self._get(name)
            self._connection.execute("UPDATE snapshot SET updated = ? WHERE id = ?", (self._clock(), found.id))
            self._label(found.id, labels)
            return self._get(name)

    def remove(self, name: str, number: int | None = None) -> SnapshotRecord:
        """Take the snapshot out; what it was. number: its id, where another may have the name by now. Raises
        SnapshotNotFound, FailedPrecondition for one with children."""
        with self._transaction():
            found = self._get(name)
            if number not in (None, found.id):
                raise SnapshotNotFound(f"there is no snapshot {name} with the id {number}")
            child = self._connection.execute("SELECT name FROM snapshot WHERE parent = ?", (found.id,)).fetchone()
            if child is not None:
                raise FailedPrecondition(f"cannot remove {name}: it has the child {child[0]}")
            self._connection.execute("DELETE FROM snapshot WHERE id = ?", (found.id,))
            return found

    # -- within a transaction ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:  # a full disk may have ended it already
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
                raise

    def _migrate(self) -> None:
        with self._transaction():
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version == VERSION:
                return
            if version:
                raise StripefsError(
                    f"{self._path} is of version {version}, and this program knows version {VERSION}",
                    hint="run the newer imagefs again, or let containerd use another --root",
                )
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def _parent(self, name: str) -> int | None:
        if not name:
            return None
        found = self._get(name)
        if found.kind is not Kind.COMMITTED:
            raise InvalidArgument(f"the parent {name} is {found.kind.value}, not committed")
        return found.id

    def _check_free(self, name: str) -> None:
        if self._connection.execute("SELECT 1 FROM snapshot WHERE name = ?", (name,)).fetchone() is not None:
            raise AlreadyExists(f"there is a snapshot {name} already")

    def _label(self, owner: int, labels: Mapping[str, str]) -> None:
        self._connection.execute("DELETE FROM label WHERE snapshot = ?", (owner,))
        rows = [(owner, key, value) for key, value in labels.items()]
        self._connection.executemany("INSERT INTO label (snapshot, key, value) VALUES (?, ?, ?)", rows)

    def _get(self, name: str) -> SnapshotRecord:
        row = self._connection.execute(f"{_SELECT} WHERE s.name = ?", (name,)).fetchone()
        if row is None:
            raise SnapshotNotFound(f"there is no snapshot {name}")
        labels = self._connection.execute("SELECT key, value FROM label WHERE snapshot = ?", (row[0],))
        return _snapshot(row, dict(labels))


def _snapshot(row: tuple[Any, ...], labels: Mapping[str, str]) -> SnapshotRecord:
    number, name, parent, kind, created, updated, size, inodes, chain, source, manifest, store, image = row
    usage, tree = Usage(size, inodes), Tree(store, image) if image else None
    layer = Layer(chain, source, manifest) if chain else None
    return SnapshotRecord(
        number, name, parent, Kind(kind), created, updated, MappingProxyType(labels), usage, layer, tree
    )
