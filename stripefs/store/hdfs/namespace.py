"""Names, attributes and joins of HDFS with the manners that `Store` promises, over WebHDFS or hdfs-native.

HDFS's own calls promise less: MKDIRS makes whole paths and is content with what exists, DELETE takes files and
directories alike, RENAME tells kinds apart in words only. So each change looks at what is there first. A directory is
made under a hidden name that nobody else has, and renamed: RENAME without OVERWRITE refuses a name that is taken, so of
two clients that make the same directory at once one gets Exists.

**An answer that is lost.** No change is asked for twice unless it is known what became of the first time: as long as
that is not known, the NameNodes are asked, for up to a minute, whether the effect stands (by the inode ids seen before
where there are such), and only when it does not, the change is asked for again. A directory that may not have got its
name is taken back by its hidden name: where that is gone, the directory has got its name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from stripefs.errors import (
    Exists,
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.format.reserved_names import new_version, part_name
from stripefs.retry import Backoff, RetryPolicy, retry
from stripefs.store.base import Attributes, Identity, Kind, Status
from stripefs.store.hdfs.namenode_failover import Unanswered
from stripefs.store.hdfs.namenode_webhdfs import NameNodeRest
from stripefs.store.hdfs.wire import inode_path, temporary_path

if TYPE_CHECKING:
    from stripefs.store.hdfs.native_write import NativeNamespaceCalls

__all__ = ["Namespace", "WebNamespaceCalls"]

_log = logging.getLogger(__name__)

_SETTLE = 60.0  # seconds to find out what became of a change; a NameNode restarts within half of that


class WebNamespaceCalls:
    """HDFS's own calls, by WebHDFS at the NameNodes. `stat` is the store's.

    Paths are HDFS's, in plain text. All raise StoreErrors, Unanswered among them.
    """

    def __init__(self, rest: NameNodeRest, stat: Callable[[str], Status]) -> None:
        self._rest = rest
        self.stat = stat

    def make_directories(self, path: str, mode: int) -> None:
        self._rest.change("PUT", "MKDIRS", path, permission=f"{mode:o}")

    def delete(self, path: str) -> bool:
        """A file or an empty directory; False where nothing was."""
        return bool(self._rest.change("DELETE", "DELETE", path, recursive="false").get("boolean"))

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        # Only with options HDFS says why it refuses.
        options = "OVERWRITE" if replace else "NONE"
        self._rest.change("PUT", "RENAME", source, destination=target, renameoptions=options)

    def set_mode(self, path: str, mode: int) -> None:
        self._rest.change("PUT", "SETPERMISSION", path, permission=f"{mode:o}")

    def set_owner(self, path: str, owner: str | None, group: str | None) -> None:
        given = {"owner": owner, "group": group}
        self._rest.change("PUT", "SETOWNER", path, **{key: value for key, value in given.items() if value})

    def set_times(self, path: str, mtime_ms: int | None, atime_ms: int | None) -> None:
        given = {"modificationtime": mtime_ms, "accesstime": atime_ms}
        self._rest.change("PUT", "SETTIMES", path, **{key: value for key, value in given.items() if value is not None})

    def set_replication(self, path: str, replicas: int) -> bool:
        """False where no file is."""
        return bool(self._rest.change("PUT", "SETREPLICATION", path, replication=str(replicas)).get("boolean"))

    def concat(self, target: str, sources: Sequence[str]) -> None:
        self._rest.change("POST", "CONCAT", target, sources=",".join(sources))


class Namespace:
    """`Store`'s changes by `calls`; settle is the time to find out about a lost answer, in seconds."""

    def __init__(self, calls: WebNamespaceCalls | NativeNamespaceCalls, *, settle: float = _SETTLE) -> None:
        self._calls = calls
        self._settle = settle

    def mkdir(self, path: str, mode: int) -> None:
        if self._there(path) is not None:
            raise Exists(f"{path} exists already")
        above = self._calls.stat(path.rpartition("/")[0] or "/")
        if above.kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{path}: a parent is not a directory")

        folder, _, name = path.rpartition("/")
        hidden = f"{folder}/{os.fsdecode(part_name(name.encode(), new_version(), 0))}"

        def made() -> bool:
            return self._there(hidden) is not None

        self._change(f"making {path}", lambda: self._calls.make_directories(hidden, mode), made)
        try:
            self.rename(hidden, path, replace=False)
        except Transient as error:
            if self._withdrawn(hidden, path, error):
                raise
        except StoreError:
            with contextlib.suppress(StoreError):
                self._calls.delete(hidden)
            raise

    def _withdrawn(self, hidden: str, path: str, why: Transient) -> bool:
        """Tells whether the directory that was to be renamed to `path` was there, and is no more; else it is `path`.

        Raises StoreError where that is not known: a caller that asks again would take another's directory for its own.
        """
        try:
            return self._calls.delete(hidden)
        except StoreError as error:
            raise StoreError(
                f"{path}: not known whether this directory was made: {why.message}", hint="look whether it is there"
            ) from error

    def make_directories(self, path: str) -> None:
        """With all above; an existing directory is left as it is."""
        self._change(f"making {path}", lambda: self._calls.make_directories(path, 0o755))

    def rmdir(self, path: str) -> None:
        found = self._calls.stat(path)
        if found.kind is not Kind.DIRECTORY:
            raise NotADirectory(f"{path} is not a directory")
        self._delete(path, lambda: not _same(self._there(path), found))

    def remove(self, path: str) -> None:
        found = self._calls.stat(path)
        if found.kind is Kind.DIRECTORY:
            raise IsADirectory(f"{path} is a directory")
        self._delete(path, lambda: not _same(self._there(path), found))

    def rename(self, source: str, target: str, *, replace: bool, moving: Status | None = None) -> None:
        """moving: the status of `source`, where the caller knows it."""
        if moving is None:
            moving = self._calls.stat(source)
        if source == target:
            if replace:
                return
            raise Exists(f"{target} exists already")

        def moved() -> bool:
            return not _same(self._there(source), moving) and _same(self._there(target), moving)

        try:
            self._change(
                f"renaming {source} to {target}",
                lambda: self._calls.rename(source, target, replace=replace),
                moved,
            )
        except StoreError as error:
            if "must both be directories" in error.message:
                if not replace:
                    raise Exists(f"{target} exists already") from error
                raise _mismatch(moving, target) from error
            raise

    def compare_and_rename(self, source: str, target: str, seen: Identity, *, moving: Status | None = None) -> None:
        """By the path of the inode that was seen at `target`, which the NameNode resolves in the step itself.

        moving: as for `rename`.
        """
        standing = self._calls.stat(source) if moving is None else moving

        def moved() -> bool:
            return not _same(self._there(source), standing) and _same(self._there(target), standing)

        inode = inode_path(seen.file_id)
        try:
            self._change(
                f"renaming {source} to {target}", lambda: self._calls.rename(source, inode, replace=True), moved
            )
        except NotFound as error:
            if self._there(source) is None:
                raise
            raise StaleVersion(f"{target} was replaced or removed") from error

    def move_inode(self, file_id: str, target: str) -> None:
        """The file of this inode, wherever it is, goes to `target`. Raises Exists where something is."""
        inode = inode_path(file_id)

        def moved() -> bool:
            found = self._there(target)
            return found is not None and found.file_id == file_id

        self._change(f"moving {inode} to {target}", lambda: self._calls.rename(inode, target, replace=False), moved)

    def compare_and_remove(self, path: str, seen: Identity) -> None:
        """As `compare_and_rename`. An inode id never comes again, so what bears it is what was seen."""
        inode = inode_path(seen.file_id)
        try:
            self._delete(inode, lambda: self._there(inode) is None)
        except NotFound:
            raise StaleVersion(f"{path} was replaced or removed") from None

    def set_attributes(self, path: str, attributes: Attributes) -> None:
        # Each of these may be done twice.
        if attributes.owner is not None or attributes.group is not None:
            owner, group = attributes.owner, attributes.group
            self._change(f"giving {path} away", lambda: self._calls.set_owner(path, owner, group))
        if attributes.mode is not None:
            mode = attributes.mode
            if mode & ~0o1777:  # WebHDFS refuses them in words of its own, hdfs-native leaves them out
                raise PermissionDenied(f"{path}: HDFS keeps no setuid and setgid bits")
            self._change(f"setting the mode of {path}", lambda: self._calls.set_mode(path, mode))
        if attributes.mtime_ns is not None or attributes.atime_ns is not None:
            mtime, atime = _milliseconds(attributes.mtime_ns), _milliseconds(attributes.atime_ns)
            self._change(f"setting the times of {path}", lambda: self._set_times(path, mtime, atime))

        if attributes.replication is not None:
            replicas = attributes.replication

            def replicate() -> None:
                if not self._calls.set_replication(path, replicas):
                    self._calls.stat(path)  # raises NotFound where nothing is
                    raise IsADirectory(f"{path} is no file")

            self._change(f"setting the replication of {path}", replicate)

    def concat(self, target: str, sources: Sequence[str]) -> None:
        if not sources:
            return
        before = self._calls.stat(target)
        found = [self._calls.stat(source) for source in sources]
        for source, status in zip(sources, found, strict=True):
            if status.kind is not Kind.FILE or not status.length:
                raise Unsupported(f"{source} is no file with bytes in it, which HDFS cannot join")
        total = before.length + sum(status.length for status in found)
        with self._plainly_named(sources) as named:
            self._join(target, named, total)

    def _join(self, target: str, named: Sequence[str], total: int) -> None:
        def joined() -> bool:
            now = self._there(target)
            return now is not None and now.length == total and all(self._there(source) is None for source in named)

        try:
            self._change(f"joining {target}", lambda: self._calls.concat(target, named), joined)
        except StoreError as error:
            if "underConstruction" in error.message:  # and not empty, as we have seen: its last block is on its way
                raise Transient(error.message) from error
            if "IllegalArgumentException" in error.message:
                raise Unsupported(error.message) from error
            raise

    @contextlib.contextmanager
    def _plainly_named(self, sources: Sequence[str]) -> Iterator[Sequence[str]]:
        """`sources` under names that their list can hold, since WebHDFS cuts it at every comma; put back on failure."""
        if any("," in source.rpartition("/")[0] for source in sources):
            raise Unsupported(f"{sources[0]}: WebHDFS joins no files of a directory whose path has a comma")
        moved: list[tuple[str, str]] = []
        try:
            for source in sources:
                if "," in source:
                    moved.append((source, _without_comma(source)))
                    self.rename(*moved[-1], replace=False)
            renamed = dict(moved)
            yield [renamed.get(source, source) for source in sources]
        except StoreError:
            for source, plain in moved:
                with contextlib.suppress(StoreError):
                    self.rename(plain, source, replace=False)
            raise

    def _set_times(self, path: str, mtime_ms: int | None, atime_ms: int | None) -> None:
        try:
            self._calls.set_times(path, mtime_ms, atime_ms)
        except StoreError as error:
            if atime_ms is None or "accesstime" not in error.message:
                raise
            # This cluster keeps no access times (dfs.namenode.accesstime.precision 0).
            if mtime_ms is not None:
                self._calls.set_times(path, mtime_ms, None)

    def _delete(self, path: str, gone: Callable[[], bool]) -> None:
        def delete() -> None:
            if not self._calls.delete(path):
                raise NotFound(f"{path} does not exist")

        self._change(f"removing {path}", delete, gone)

    def _there(self, path: str) -> Status | None:
        try:
            return self._calls.stat(path)
        except (NotFound, NotADirectory):
            return None

    def _change(self, what: str, attempt: Callable[[], None], stands: Callable[[], bool] = lambda: False) -> None:
        """Make the change once. `stands` tells whether it was made; False where it may as well be made again."""
        deadline = time.monotonic() + self._settle
        backoff = Backoff()
        asked_before = False
        while True:
            try:
                attempt()
                return
            except Unanswered as error:
                _log.warning("%s: %s; looking what became of it", what, error)
                if asked_before and time.monotonic() > deadline:
                    raise
                asked_before = True
            except StoreError:
                # An earlier request may have been late rather than lost, and its result be in the way now.
                if asked_before and self._became(what, stands, deadline):
                    return
                raise
            if self._became(what, stands, deadline):
                return
            time.sleep(backoff.failed(time.monotonic()))

    def _became(self, what: str, stands: Callable[[], bool], deadline: float) -> bool:
        """True if the change was made, as soon as a NameNode can tell. Raises ServiceDown when none can in time."""
        try:
            return retry(stands, RetryPolicy(deadline - time.monotonic(), errors=(ServiceDown,)))
        except ServiceDown as error:
            raise ServiceDown(f"{what}: not known whether it was done: {error.message}") from error


def _without_comma(path: str) -> str:
    """A hidden name in the same directory; a hidden file keeps the shape by which gc knows what a crash left."""
    folder, _, name = path.rpartition("/")
    plain = name.replace(",", "~")
    return f"{folder}/{plain}" if name.startswith(".") else temporary_path(f"{folder}/{plain}")


def _same(now: Status | None, before: Status) -> bool:
    """True if two sightings are of one entry: by inode id, else by what a rename leaves as it is."""
    if now is None:
        return False
    if now.file_id or before.file_id:
        return now.file_id == before.file_id
    return (now.kind, now.length, now.mtime_ns) == (before.kind, before.length, before.mtime_ns)


def _mismatch(moving: Status, target: str) -> StoreError:
    if moving.kind is Kind.DIRECTORY:
        return NotADirectory(f"{target} is not a directory")
    return IsADirectory(f"{target} is a directory")


def _milliseconds(ns: int | None) -> int | None:
    return None if ns is None else ns // 1_000_000
