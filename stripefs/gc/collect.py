"""`stripefs gc`: find what crashes left and remove it, beside writers and readers that go on.

`scan` finds candidates, `rules` judges them. Each thing is looked at once more right before it goes. Objects beside a
file go under that file's own lock, so no writer can begin meanwhile; a version of the pool goes when no file names it
and nothing in it is young.

A collector and the writers that it takes for dead may both have been stopped for any time, so both are fenced. A lock
that ran out and still stands protects the versions that it names: its writer may wake up, renew it and publish. A
process that takes such a lock moves the writer's hidden files away first (`stripefs.write.file_lock`), and looks then
whether the writer has published after all. Things go only while the collector's lease lasts and its lock is there.

`clear_for_rmdir` clears one directory that a mount shows as empty and that still holds what writers have left, by the
same rules but for the age of a provably dead writer's files: no tree is walked, since a writer has a living lock in
each directory with hidden files of its own. Hidden files that may be of use stay, and with them the directory.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from stripefs.errors import (
    Busy,
    DraftLost,
    IsADirectory,
    LeaseEnded,
    NoSpace,
    NotEmpty,
    NotFound,
    QuotaExceeded,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.format import reserved_names
from stripefs.format.lock_and_record import LEASE, DocumentError, Record
from stripefs.gc import deferred_delete
from stripefs.gc.rules import AGE, FORCED_AGE, Circumstances, GcVerdict, HiddenKind, Item, judge
from stripefs.gc.scan import AT_ONCE, Scan, ScanResult, orphans
from stripefs.gc.store_reads import aside, exists, is_obsolete, read_chain, retry_transient, versions_of
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from stripefs.write.file_lock import FileLock, acquire
from stripefs.write.store_ops import StoreClock
from stripefs.write.upload_names import join_path, split_path

__all__ = ["MOST", "Collected", "Collection", "Removed", "clear_for_rmdir"]

MOST = 100_000
"""Versions of the pool, and things beside files, of one search: some 30 MB."""

TOLD = 10_000
"""Removed things that are kept to be named; more are only counted."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A thing that was removed, or would be. length in bytes."""

    path: bytes
    kind: HiddenKind
    length: int


@dataclass(slots=True)
class Collected:
    """Result of a collection.

    size: bytes removed. kept: number and bytes of the things that stay, by reason. recoverable: files that `stripefs
    recover` could bring back. trouble: paths and the errors there.
    """

    removed: int = 0
    size: int = 0
    items: list[Removed] = field(default_factory=list)
    kept: dict[GcVerdict, tuple[int, int]] = field(default_factory=dict)
    recoverable: list[bytes] = field(default_factory=list)
    trouble: list[tuple[bytes, str]] = field(default_factory=list)

    def keep(self, verdict: GcVerdict, length: int) -> None:
        count, size = self.kept.get(verdict, (0, 0))
        self.kept[verdict] = (count + 1, size + length)


class Collection:
    """One run of gc on `store`, the plain one; `view` shows the striped files in it.

    tell: called with each directory that is looked at, for people. folder: where the store's clock is read; in the
    pool where there is one, since a directory that changes is one to be searched again. Raises Unsupported for a store
    that cannot be listed or written to, and what telling its clock raises.
    """

    def __init__(
        self,
        store: Store,
        view: StripedStore,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Callable[[bytes], None] = lambda _path: None,
        most: int = MOST,
        folder: bytes = b"",
    ) -> None:
        if not store.capabilities.listing:
            raise Unsupported(f"{store.url} cannot be listed")
        if not store.capabilities.put:
            raise Unsupported(f"{store.url} cannot be written to")
        self._store, self._view, self._force, self._dry_run = store, view, force, dry_run
        self._clock = StoreClock(store, folder or (reserved_names.POOL if exists(store, reserved_names.POOL) else b"/"))
        age = FORCED_AGE if force else AGE
        self._scan = Scan(store, view, self._clock, age=age, most=most, progress=progress, failed=self._trouble)
        self._found = Collected()
        self._of_whole_tree = True
        self._expired: dict[bytes, frozenset[str]] = {}  # locks that ran out, and the versions that each names
        self._fenced: set[str] = set()  # their writers can publish no more

    def run(self) -> Collected:
        """Raises what listing the root raises; errors further down are in `trouble`."""
        after, beside = "", True
        while True:
            seen, after = self._scan.run(after, beside=beside)
            removed = self._found.removed
            self._expired.update(seen.expired)
            facts = self._judge_records(seen, first=beside)
            if beside:
                self._judge_beside(seen, facts)
            facts = replace(facts, leased=facts.leased | (frozenset().union(*self._expired.values()) - self._fenced))
            self._judge_pool(seen, facts)
            self._judge_orphans(seen, facts)
            # The next search finds the suspects that found no place in this one, if this one has removed some.
            beside = seen.full and not self._dry_run and self._found.removed > removed
            if seen.full and not beside:
                self._trouble(b"/", StoreError("there are more hidden files than can be looked at at once"))
            if not after and not beside:
                return self._found

    def clear(self, folder: bytes, used: Set[str] = frozenset()) -> Collected:
        """Remove the hidden objects of no writer from a directory that holds nothing else. used: versions at work.

        Raises NotEmpty where something else is in it, and then nothing is removed; also the errors of listing it.
        """
        self._of_whole_tree = False
        seen = self._scan.directory(folder)
        if seen.locked:  # all else here may be of the same writer
            for item in (*seen.suspects.values(), *seen.records.values()):
                self._found.keep(GcVerdict.LEASED, item.length)
            for _ in seen.locked:
                self._found.keep(GcVerdict.LEASED, 0)
            return self._found
        seen.leased |= used
        facts = self._judge_records(seen, first=True)
        if self._store.capabilities.put_if_absent:
            facts = replace(facts, ended=frozenset().union(*seen.expired.values()))
        self._judge_beside(seen, facts)
        return self._found

    def _judge_records(self, seen: ScanResult, *, first: bool) -> Circumstances:
        """Collect the facts that decide about everything else. Records join the suspects, where `first` of all
        searches."""
        facts = Circumstances(
            self._clock.now_ns(), leased=seen.leased, locked=seen.locked, complete=seen.complete, force=self._force
        )
        recorded: set[str] = set()
        for pieces in _by_upload(seen):
            newest = pieces[max(pieces)]
            try:
                record, needed = self._record(pieces)
            except StoreError as error:
                self._trouble(newest.path, error)
                recorded.add(newest.version)
                continue
            for number, item in pieces.items() if first else ():
                # The record that another continues is as young as that one: it is of use as long.
                changed_ns = newest.changed_ns if number in needed else item.changed_ns
                seen.suspects[item.path] = replace(item, published=number not in needed, changed_ns=changed_ns)
            verdict = judge(replace(newest, published=record is None), facts)
            if record is not None and verdict is not GcVerdict.RUBBISH:
                recorded |= {newest.version, *versions_of(record)}
                if first and verdict is not GcVerdict.LEASED and len(self._found.recoverable) < TOLD:
                    self._found.recoverable.append(join_path(split_path(newest.name)[0], split_path(record.path)[1]))
        return replace(facts, recorded=recorded)

    def _judge_beside(self, seen: ScanResult, facts: Circumstances) -> None:
        """Remove what is rubbish beside files."""
        # Records first: one that names parts that are gone is of no use. Locks last: until then nobody begins here.
        order = sorted(
            seen.suspects.values(),
            key=lambda item: (item.name, item.kind is not HiddenKind.RECORD, item.kind is HiddenKind.LOCK, item.path),
        )
        for name, group in itertools.groupby(order, key=lambda item: item.name):
            self._remove_beside(name, list(group), facts)

    def _record(self, pieces: dict[int, Item]) -> tuple[Record | None, Set[int]]:
        """The record that the newest of `pieces` ends, and the numbers of those it is made of; None and none where
        nothing is left that it could be used for."""
        paths = {number: item.path for number, item in pieces.items()}
        try:
            record, needed = retry_transient(lambda: read_chain(self._store, paths))
            if not retry_transient(lambda: is_obsolete(self._store, self._view, record, paths[max(paths)])):
                return record, needed
        except (NotFound, DocumentError):
            pass
        return None, frozenset()

    def _judge_pool(self, seen: ScanResult, facts: Circumstances) -> None:
        """Remove the versions of the pool that nobody needs."""
        for version in sorted(seen.candidates):
            path = reserved_names.version_folder(version)
            with self._collecting_errors(path), contextlib.suppress(NotFound):
                found = retry_transient(partial(deferred_delete.stored, self._store, version))
                item = Item(path, HiddenKind.VERSION, b"", version, found.length, found.changed_ns)
                verdict = judge(item, replace(facts, now_ns=self._clock.now_ns()))
                if verdict is not GcVerdict.RUBBISH:
                    self._found.keep(verdict, item.length)
                elif found.foreign:
                    raise StoreError("it holds what no writer put there")
                else:
                    if not self._dry_run:
                        retry_transient(partial(deferred_delete.remove_version, self._store, version))
                    self._count(item)

    def _judge_orphans(self, seen: ScanResult, facts: Circumstances) -> None:
        """Remove what lies in the folders of versions that files need, and is not needed by these."""

        def look(version: str) -> list[Item] | StoreError:
            path, count = seen.named[version]
            try:
                return retry_transient(lambda: orphans(self._store, self._view, version, path, count))
            except StoreError as error:
                return error

        versions = [version for version, (path, _) in sorted(seen.named.items()) if path]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gc") as threads:
            for version, found in zip(versions, threads.map(look, versions), strict=True):
                with self._collecting_errors(reserved_names.version_folder(version)):
                    if isinstance(found, StoreError):
                        raise found
                    for item in found:
                        self._clear_orphan(item, replace(facts, now_ns=self._clock.now_ns()))

    def _clear_orphan(self, item: Item, facts: Circumstances) -> None:
        verdict = judge(item, facts)
        if verdict is not GcVerdict.RUBBISH:
            self._found.keep(verdict, item.length)
            return
        if not self._dry_run:
            with contextlib.suppress(NotFound):
                retry_transient(partial(self._remove_path, item.path))
        self._count(item)

    def _remove_beside(self, name: bytes, group: list[Item], facts: Circumstances) -> None:
        """Remove what of the hidden things of one file is rubbish."""
        removable = []
        for item in group:
            verdict = judge(item, facts)
            if verdict is GcVerdict.RUBBISH:
                removable.append(item)
            else:
                self._found.keep(verdict, item.length)
        if self._dry_run or not removable:
            for item in removable:
                self._fenced.update(self._expired.get(item.path, ()))
                self._count(item)
            return
        with self._collecting_errors(name), contextlib.suppress(NotFound):  # the directory is gone
            while removable:
                try:
                    self._remove_locked(name, removable, facts)
                    return
                except (NoSpace, QuotaExceeded):
                    # Writers find no room for a lock either. When one of these is gone there may be some.
                    if removable[0].kind is HiddenKind.LOCK:
                        raise
                    with self._collecting_errors(removable[0].path):
                        self._remove(removable.pop(0), facts)

    def _remove_locked(self, name: bytes, removable: list[Item], facts: Circumstances) -> None:
        """Takes from `removable` what is done with."""
        try:
            with self._locked(name) as lock:
                while removable:
                    if lock is not None:
                        lock.renew_if_due()
                        lock.assert_held()
                    item = removable.pop(0)
                    with self._collecting_errors(item.path):
                        self._remove(item, facts)
        except (Busy, DraftLost, LeaseEnded):
            for item in removable:
                self._found.keep(GcVerdict.LEASED, item.length)

    def _remove(self, item: Item, facts: Circumstances) -> None:
        """Look once more and remove it. Its writer's files were moved aside if this took over from one."""
        path = item.path
        if item.kind is not HiddenKind.LOCK:  # that is ours by now, and goes when we let it go
            try:
                try:
                    now = retry_transient(lambda: self._store.stat(path))
                except NotFound:
                    path = aside(path) or path
                    now = retry_transient(lambda: self._store.stat(path))
                item = replace(item, length=now.length, changed_ns=now.mtime_ns)
                verdict = judge(item, replace(facts, now_ns=self._clock.now_ns()))
                if verdict is not GcVerdict.RUBBISH:
                    self._found.keep(verdict, item.length)
                    return
                retry_transient(partial(self._remove_path, path))
            except NotFound:
                return  # another gc, or its writer has published it after all
        self._count(item)

    def _remove_path(self, path: bytes) -> None:
        try:
            self._store.remove(path)
        except IsADirectory:
            self._store.rmdir(path)

    @contextmanager
    def _locked(self, name: bytes) -> Iterator[FileLock | None]:
        """Hold the lock of a file; None where the store cannot lock. Raises Busy, NotFound, StoreError.

        A store that cannot lock has no writers that lock either: there the age alone decides.
        """
        if not self._store.capabilities.put_if_absent:
            yield None
            return
        owner = reserved_names.new_version()  # by which a second try knows what the first has done
        before: set[str] = set()
        # A whole tree is searched without haste, so there a writer that sleeps has twice the lease.
        seconds = FORCED_AGE if self._of_whole_tree else LEASE
        lock = retry_transient(lambda: acquire(self._store, name, (), owner, before=before, seconds=seconds))
        try:
            if before:
                self._fenced |= before - self._published(name)
            yield lock
        finally:
            lock.release()

    def _published(self, name: bytes) -> frozenset[str]:
        """The versions that the file at `name` needs now."""
        try:
            manifest = retry_transient(lambda: self._view.manifest(name))
        except NotFound:
            return frozenset()
        return frozenset() if manifest is None else frozenset(manifest.versions)

    @contextmanager
    def _collecting_errors(self, path: bytes) -> Iterator[None]:
        """An error of one entry is reported at the end, and stops no other work."""
        try:
            yield
        except NotFound:
            raise
        except StoreError as error:
            self._trouble(path, error)

    def _count(self, item: Item) -> None:
        self._found.removed += 1
        self._found.size += item.length
        if len(self._found.items) < TOLD:
            self._found.items.append(Removed(item.path, item.kind, item.length))

    def _trouble(self, path: bytes, error: StoreError) -> None:
        if len(self._found.trouble) < TOLD and all(path != told for told, _ in self._found.trouble):
            self._found.trouble.append((path, error.message))


def _by_upload(seen: ScanResult) -> Iterable[dict[int, Item]]:
    """The records of each upload, by number."""
    found: dict[tuple[bytes, str], dict[int, Item]] = {}
    for item in seen.records.values():
        meaning = reserved_names.parse_reserved(split_path(item.path)[1])
        assert meaning is not None
        found.setdefault((item.name, item.version), {})[meaning.number] = item
    return found.values()


_log = logging.getLogger(__name__)

_WHY = {
    GcVerdict.LEASED: "of writers that are at work",
    GcVerdict.RECOVERABLE: "kept for stripefs recover",
    GcVerdict.YOUNG: "too young to be surely nobody's",
}


def clear_for_rmdir(store: Store, view: StripedStore, folder: bytes, used: Set[str] = frozenset()) -> None:
    """Remove from `folder` what dead writers left, all of it or, with NotEmpty, a part. Blocks.

    view: of `store`. used: versions that writers of the caller have. Raises NotEmpty, and says in the log why, where
    something stays that a mount does not show; NotFound; Transient.
    """
    try:
        found = Collection(store, view, folder=folder).clear(folder, used)
    except (NotFound, NotEmpty, Transient):
        raise
    except StoreError as error:
        why = str(error)
    else:
        why = _what_stays(found)
        if not why:
            return
    _log.warning(
        "%r looks empty and stays, as hidden files are in it: %s (stripefs gc removes what nobody needs)",
        folder,
        why,
    )
    raise NotEmpty(f"{folder!r} holds hidden files: {why}")


def _what_stays(found: Collected) -> str:
    kept = [f"{count} {_WHY.get(verdict, verdict.value)}" for verdict, (count, _) in found.kept.items()]
    return "; ".join(kept + [text for _, text in found.trouble])
