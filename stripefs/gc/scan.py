"""Scan of a store for gc: pool versions that no file names, hidden things beside files, orphaned parts, live writers.

The pool is listed first: its versions are candidates. Then the tree is walked. A version that a manifest names is no
candidate any more; live locks name the files of writers; every other hidden file is a suspect. While old candidates are
left the tree is walked again: a file that was moved during a walk, from where the walk had not been to where it had, is
seen by the next one, and only directories that changed meanwhile are looked into. When a walk drops no more candidates,
those that are left are named by no file.

`orphans` are parts in the folder of a version that a file needs, which that file does not need: a part that was written
twice because its first host failed, or parts behind the last publication of a writer that died. Their version stays as
long as the file does. Only the writer of a version ever adds to its folder, so when that is gone the parts that the
manifest does not name belong to no writer.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from stripefs.errors import NotEmpty, NotFound, StaleVersion, StoreError
from stripefs.format import reserved_names
from stripefs.format.lock_and_record import LEASE, DocumentError, LockDocument
from stripefs.format.manifest import MANIFEST_MAX, Manifest, ManifestError, ManifestHeader, may_be_manifest
from stripefs.format.reserved_names import version_folder
from stripefs.gc import deferred_delete
from stripefs.gc.rules import HiddenKind, Item, older
from stripefs.gc.store_reads import Listed, retry_transient, walk
from stripefs.store.base import Kind as EntryKind
from stripefs.store.base import Status, Store
from stripefs.store.striped import StripedStore
from stripefs.units import shown
from stripefs.write.store_ops import StoreClock
from stripefs.write.upload_names import join_path, split_path

__all__ = ["Scan", "ScanResult", "needed", "orphans"]


def needed(manifest: Manifest, version: str) -> frozenset[bytes]:
    """The names in the folder of `version` that a file with this manifest needs."""
    names = {b"%d" % part.number for part in manifest.parts if part.version == version}
    if manifest.version == version and (listed := manifest.parts_list()) is not None:
        names.add(split_path(listed[0])[1])
    return frozenset(names)


def orphans(store: Store, view: StripedStore, version: str, path: bytes, count: int) -> list[Item]:
    """The files in the folder of `version` that the file at `path` does not need, as old as the newest thing there.

    count: the number of objects it needed at the last look; where there are no more, nothing is looked at twice.
    None are found when the file is not there any more.
    """
    folder = version_folder(version)
    try:
        changed_ns = store.stat(folder).mtime_ns
        entries = [status for batch in store.scandir(folder) for status in batch if status.kind is EntryKind.FILE]
        manifest = view.manifest(path) if len(entries) > count else None
    except NotFound:
        return []
    if manifest is None or version not in manifest.versions:
        return []
    changed_ns = max(changed_ns, *(status.mtime_ns for status in entries))
    names = needed(manifest, version)
    # Parts, since the version as a whole is needed.
    return [
        Item(join_path(folder, status.name), HiddenKind.PART, path, version, status.length, changed_ns)
        for status in entries
        if status.name not in names
    ]


_log = logging.getLogger(__name__)

AT_ONCE = 64
"""Manifests opened at once: each takes a round trip or two."""

_TRIES = 3
"""Readings of one manifest that is replaced while it is read."""

_WALKS = 6
"""Walks after the first. Files that are still being moved about after so many keep what they might name."""

_SINCE = 2_000_000_000
"""Nanoseconds by which a directory's time is mistrusted: object stores keep whole seconds."""

_SCRATCH = re.compile(rb"\.(?P<name>.+)\.[0-9a-f]{16,32}\.tmp", re.DOTALL)
"""The name under which a client of a store writes a file before it is whole (`stripefs.store.local_write`)."""

_KINDS = {"lock": HiddenKind.LOCK, "part": HiddenKind.PART, "record": HiddenKind.RECORD, "draft": HiddenKind.MANIFEST}


@dataclass(slots=True)
class ScanResult:
    """Result of one scan.

    candidates: versions of the pool that no manifest names, and whether they are old. named: the old ones that one
    does, with the file and how many objects it needs of them; no file where several do. leased: versions, and locked:
    files, that live locks name. expired: the locks that ran out, by path, and the versions that each names. records and
    suspects: other hidden files beside files, by path. full: True if there were too many suspects. complete: every
    directory was listed and every manifest and live lock read.
    """

    candidates: dict[str, bool] = field(default_factory=dict)
    named: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    leased: set[str] = field(default_factory=set)
    locked: set[bytes] = field(default_factory=set)
    expired: dict[bytes, frozenset[str]] = field(default_factory=dict)
    records: dict[bytes, Item] = field(default_factory=dict)
    suspects: dict[bytes, Item] = field(default_factory=dict)
    full: bool = False
    complete: bool = True


class Scan:
    """`age`: seconds after which a version counts as old. At most `most` candidates and as many suspects are taken;
    records are few. `progress` is called with each directory, `failed` with what cannot be listed or read."""

    def __init__(
        self,
        store: Store,
        view: StripedStore,
        clock: StoreClock,
        *,
        age: float,
        most: int,
        progress: Callable[[bytes], None],
        failed: Callable[[bytes, StoreError], None],
    ) -> None:
        self._store, self._view, self._clock = store, view, clock
        self._age, self._most, self._progress, self._failed = age, most, progress, failed

    def run(self, after: str, *, beside: bool) -> tuple[ScanResult, str]:
        """Scan once, for versions of the pool behind `after`; where the next search is to begin, "" for none.

        beside: take suspects too. Raises what listing the root raises.
        """
        seen = ScanResult()
        self._began_ns = self._clock.now_ns() - _SINCE
        after = self._candidates(seen, after)
        if beside:
            self._look_in_pool(seen)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gc") as threads:
            self._walk(seen, threads, beside=beside)
            self._confirm(seen, threads)
        return seen, after

    def directory(self, folder: bytes) -> ScanResult:
        """Look at one directory alone; raises NotEmpty where it holds what no writer leaves, but for its layout."""
        seen = ScanResult()
        for batch in self._store.scandir(folder):
            for entry in batch:
                known = entry.name == reserved_names.LAYOUT_NAME or _parse(entry.name)[0] is not None
                if not (known and _is_leftover(entry)):
                    raise NotEmpty(f"{folder!r} is not empty: {entry.name!r} is in it")
                self._look_beside(seen, Listed(folder, 0, batch), entry, beside=True)
        return seen

    def _trouble(self, seen: ScanResult, path: bytes, error: StoreError) -> None:
        seen.complete = False
        self._failed(path, error)

    def _candidates(self, seen: ScanResult, after: str) -> str:
        """Versions of the pool behind `after`, as many as there is room for; the last of them, "" at the end."""
        for version, changed_ns in deferred_delete.versions(self._store, after):
            if len(seen.candidates) == self._most:
                return after
            seen.candidates[version] = older(changed_ns or 1, self._age, self._began_ns)
            after = version
        return ""

    def _look_in_pool(self, seen: ScanResult) -> None:
        """Take the files that programs which died left in the pool: their names come before those of versions."""
        try:
            for batch in self._store.scandir(reserved_names.POOL):
                for entry in batch:
                    if not entry.name.startswith(b"."):
                        return
                    if _is_leftover(entry):
                        self._look_beside(seen, Listed(reserved_names.POOL, 0, batch), entry, beside=True)
        except NotFound:
            pass  # there is no pool
        except StoreError as error:
            self._trouble(seen, reserved_names.POOL, error)

    def _walk(self, seen: ScanResult, threads: ThreadPoolExecutor, *, beside: bool, since_ns: int = 0) -> int:
        """Look at the whole tree, or at the directories that changed since then; how many old candidates were dropped.

        beside: take suspects.
        """

        dropped = 0
        for listed in walk(self._store, partial(self._trouble, seen)):
            self._progress(listed.folder)
            if not since_ns or not listed.changed_ns or listed.changed_ns >= since_ns:
                dropped += self._drop_named(seen, threads, listed)
                for entry in listed.entries:
                    if _is_leftover(entry):
                        self._look_beside(seen, listed, entry, beside)
        return dropped

    def _confirm(self, seen: ScanResult, threads: ThreadPoolExecutor) -> None:
        """Walk again until nothing more turns out to be named."""
        for _ in range(_WALKS):
            if not any(seen.candidates.values()) or not seen.complete:
                return
            if not self._walk(seen, threads, beside=False, since_ns=self._began_ns):
                return
        self._trouble(seen, b"/", StoreError("files are being moved about, so nobody knows which versions they name"))

    def _drop_named(self, seen: ScanResult, threads: ThreadPoolExecutor, listed: Listed) -> int:
        """Drop the candidates that the manifests of a batch name; the number of those that are, or may be, old."""
        dropped = 0
        entries = [e for e in listed.entries if e.kind is EntryKind.FILE and _looks_like_manifest(e)]
        for start in range(0, len(entries), AT_ONCE) if seen.candidates else ():
            some = entries[start : start + AT_ONCE]
            for entry, named in zip(some, threads.map(self._named, (listed.path(e) for e in some), some), strict=True):
                if isinstance(named, StoreError):
                    self._trouble(seen, listed.path(entry), named)
                elif named is None:
                    # Perhaps it was moved to where this walk has been already: it takes another one.
                    dropped += older(entry.mtime_ns, self._age, self._began_ns)
                else:
                    dropped += sum(
                        _note_named(seen, version, listed.path(entry), count) for version, count in named.items()
                    )
        return dropped

    def _named(self, path: bytes, entry: Status) -> Mapping[str, int] | StoreError | None:
        """The versions that the file at `path` needs, and how many objects of each.

        None when it is not there any more, or not as it was listed. A file without the mark is a user's, whatever its
        bytes are: it can keep the versions that it names, and nothing else.
        """
        for attempt in itertools.count(1):
            failure: StoreError
            try:
                manifest = retry_transient(lambda: self._manifest(path))
            except NotFound:
                return None
            except StaleVersion as error:
                if attempt < _TRIES:
                    continue
                failure = error
            except ManifestError as error:
                if entry.marked and not self._is_unchanged(path, entry):
                    return None
                failure = error
            except StoreError as error:
                failure = error
            else:
                if not entry.marked:
                    _log.info("%s is a manifest that lost its mark in a copy: what it names stays", shown(path))
                return {version: len(needed(manifest, version)) for version in manifest.versions}
            return failure if entry.marked else {}
        raise AssertionError("unreachable")

    def _manifest(self, path: bytes) -> Manifest:
        """The manifest at `path`, in one round trip where the list of parts is in it. Raises ManifestError."""
        data = bytes(self._store.read_small(path, MANIFEST_MAX))
        heading = ManifestHeader.from_bytes(data)
        return self._view.manifest_in(path, data) if heading.outside else Manifest.from_bytes(data)

    def _is_unchanged(self, path: bytes, entry: Status) -> bool:
        """True if the file at `path` is still the one that was listed."""
        try:
            return retry_transient(lambda: self._store.stat(path)).identity == entry.identity
        except StoreError:
            return False

    def _look_beside(self, seen: ScanResult, listed: Listed, entry: Status, beside: bool) -> None:
        """Take note of what is hidden beside a file."""
        kind, stem, version = _parse(entry.name)
        if kind is None:
            return  # made by a program newer than this one
        item = Item(
            listed.path(entry), kind, join_path(listed.folder, stem), version, entry.length, changed_ns=entry.mtime_ns
        )
        if kind is HiddenKind.LOCK and not older(entry.mtime_ns, LEASE, self._clock.now_ns()):
            seen.locked.add(item.name)
            seen.leased.update(self._protected(seen, item))
            return
        if kind is HiddenKind.LOCK:
            seen.expired[item.path] = self._protected(seen, item)
        if kind is HiddenKind.RECORD:
            seen.records[item.path] = item
        elif beside and len(seen.suspects) < self._most:
            seen.suspects[item.path] = item
        else:
            seen.full = seen.full or beside

    def _protected(self, seen: ScanResult, lock: Item) -> frozenset[str]:
        """The versions that a lock names."""
        try:
            data = retry_transient(lambda: self._store.get_document(lock.path))
            return frozenset(LockDocument.from_bytes(bytes(data)).versions)
        except NotFound:
            pass  # let go, so what it protected is published or abandoned, and young
        except DocumentError as error:
            if lock.name in seen.locked:  # else it has run out, and its writer cannot read it either
                self._trouble(seen, lock.path, error)
        except StoreError as error:
            self._trouble(seen, lock.path, error)
        return frozenset()


def _note_named(seen: ScanResult, version: str, path: bytes, count: int) -> bool:
    """Note that the file at `path` names a version; True if that was an old candidate so far."""
    old = seen.candidates.pop(version, False)
    if old:
        seen.named[version] = (path, count)
    elif version in seen.named and seen.named[version][0] != path:
        seen.named[version] = (b"", 0)
    return old


def _looks_like_manifest(entry: Status) -> bool:
    """True if it is the manifest of a file, or of such a length that it may have lost its mark in a copy.

    Hidden manifests are of files that are not published.
    """
    return not reserved_names.is_hidden(entry.name) and (entry.marked or may_be_manifest(entry.length))


def _is_leftover(entry: Status) -> bool:
    """True if it is a hidden file, or the hidden directory by which HDFS clients make one of another name."""
    found = reserved_names.parse_reserved(entry.name)
    directory = entry.kind is EntryKind.DIRECTORY and found is not None and found.kind == "part"
    return directory or (entry.kind is EntryKind.FILE and reserved_names.is_hidden(entry.name))


def _parse(name: bytes) -> tuple[HiddenKind | None, bytes, str]:
    """Kind of a hidden name, the stem of the file that it belongs to, and its version."""
    found = reserved_names.parse_reserved(name)
    if found is not None:
        return _KINDS[found.kind], found.stem, found.version
    scratch = _SCRATCH.fullmatch(name)
    inner = reserved_names.parse_reserved(scratch["name"]) if scratch else None
    return (None, b"", "") if inner is None else (HiddenKind.SCRATCH, inner.stem, inner.version)
