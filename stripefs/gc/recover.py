"""`stripefs recover`: from the record of an fsync to a file, as far as its bytes are those that were written.

A record names the parts that were durable. Recovery takes the longest beginning of the file of which every part is
whole: of concat and plain files all have their lengths, of striped ones all bytes fit their checksums.

Publishing ends in one rename, as a writer's does, under the locks of both names. It may be repeated after a crash:
joined parts stand under the name of the upload, or of the first of them, whose length says how far it got. Where they
cannot be joined to the target, they are copied to a file of a new version, which no later recovery takes for a source.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from stripefs.errors import Exists, NotFound, StaleVersion, StoreError, Transient
from stripefs.format import reserved_names
from stripefs.format.lock_and_record import RecordPart, RecordSegment
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE, Manifest, ManifestError, Part, Segment
from stripefs.gc.deferred_delete import put_tombstone
from stripefs.gc.store_reads import (
    FoundRecord,
    aside,
    exists,
    find_records,
    is_obsolete,
    is_version_of,
    length_of,
    pooled,
    retry_transient,
    status_of,
    versions_of,
)
from stripefs.store.base import Attributes, Buffer, Identity, Kind, Status, Store
from stripefs.store.striped import StripedStore
from stripefs.store.striped_handle import PartFiles, StripedHandle
from stripefs.units import shown
from stripefs.write.file_lock import FileLock, acquire
from stripefs.write.upload_names import join_path, split_path

__all__ = ["RecoveryPlan", "plan_recovery", "recover"]

SOURCES_AT_ONCE = 64
"""Files joined by one call, as writers do it."""

READ_AT_ONCE = 8
STEP = 16 << 20
"""Bytes of one read: with READ_AT_ONCE of them under way every data host of a small cluster has work."""

_PIECE = 4 << 20
"""Bytes copied at a time, where joining needs a copy."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The bytes that can be recovered of a record. length: bytes of the file, more than the record's where some that
    came later are durable too; lost: why the rest cannot, "" where nothing is missing.

    pieces: of concat and plain files what stands in the store, in order, the published file that they continue first.
    manifest: of striped files.
    """

    found: FoundRecord
    length: int
    lost: str = ""
    pieces: tuple[tuple[bytes, int], ...] = ()
    manifest: Manifest | None = None
    base: Identity | None = None

    @property
    def complete(self) -> bool:
        return self.length >= self.found.record.length


# -- what can be had
def plan_recovery(
    store: Store, view: StripedStore, found: FoundRecord, progress: Callable[[int], None] = lambda _size: None
) -> RecoveryPlan:
    """Look at every part that the record names. `progress` is called with bytes read and checked.

    Raises StoreError where that cannot be done now, and where the file that the parts continue is not there any more.
    """
    if found.record.layout == "striped":
        return _plan_striped(store, view, found, progress)
    return _plan_joined(store, view, found)


def _plan_joined(store: Store, view: StripedStore, found: FoundRecord) -> RecoveryPlan:
    record = found.record
    pieces: list[tuple[bytes, int]] = []
    base = None
    length = 0
    if record.base is not None:
        base = Identity(record.base.length, record.base.mtime_ns, record.base.file_id)
        if not is_version_of(store, view, found.file, base):
            raise StoreError(f"{shown(found.file)} has changed since the parts were written that continue it")
        pieces, length = [(found.file, base.length)], base.length
    rest = record.segments
    lost = ""
    while rest:
        at = found.place(store, rest[0].parts[0])
        drafts = (found.draft, aside(found.draft)) if rest is record.segments else ()
        joined, count = _find_joined(store, (*drafts, at), rest)
        if not count:
            there = length_of(store, at)
            lost = f"{shown(at)} " + ("is missing" if there is None else f"has {there} bytes, not {rest[0].length}")
            break
        pieces.append(joined)
        length += joined[1]
        rest = rest[count:]
    return RecoveryPlan(found, length, lost, tuple(pieces), base=base)


def _find_joined(
    store: Store, paths: Sequence[bytes], segments: Sequence[RecordSegment]
) -> tuple[tuple[bytes, int], int]:
    """The path of `paths` that holds the first of `segments`, with its length, and how many of them; 0 where none does.

    A writer or a recovery may have joined those behind it to it since, or died while it did, and joined to the last of
    them what was written later: that is as durable.
    """
    sums = list(itertools.accumulate(segment.length for segment in segments))
    for path in paths:
        length = length_of(store, path)
        if length and (length in sums or length > sums[-1]):
            return (path, length), bisect.bisect(sums, length)
    return (b"", 0), 0


def _plan_striped(
    store: Store, view: StripedStore, found: FoundRecord, progress: Callable[[int], None]
) -> RecoveryPlan:
    record = found.record
    before: tuple[Segment, ...] = ()
    base = None
    if record.base is not None:
        base = Identity(record.base.length, record.base.mtime_ns, record.base.file_id)
        published = view.manifest(found.file)
        if published is None or not is_version_of(store, view, found.file, base):
            raise StoreError(f"{shown(found.file)} has changed since the parts were written that continue it")
        before = published.segments
    lost = ""
    good: list[Segment] = []
    for segment in record.segments:
        try:
            parts = tuple(map(_part, segment.parts))
            whole = Segment(segment.length, parts)
            _verify(store, view, found, whole, progress)
        except Transient:
            raise
        except StoreError as error:
            lost = error.message
            break
        good.append(whole)
    try:
        manifest = Manifest(reserved_names.new_version(), 0, record.unit, view.pool, (*before, *good))
    except ManifestError as error:
        raise StoreError(f"the record of {shown(found.file)} does not hold together: {error.message}") from error
    return RecoveryPlan(found, manifest.length, lost, manifest=manifest, base=base)


def _verify(
    store: Store, view: StripedStore, found: FoundRecord, segment: Segment, progress: Callable[[int], None]
) -> None:
    """Read a striped segment to its end; every byte is compared with its checksum. Raises StoreError."""
    manifest = Manifest(found.record.version, 0, found.record.unit, view.pool, (segment,))
    name = split_path(found.file)[1]
    parts = PartFiles(store, reserved_names.POOL, manifest, shown(name))
    status = Status(name, Kind.FILE, segment.length)
    with ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="recover") as threads:
        handle = StripedHandle(status, manifest, parts, lambda: True, threads, threads)

        def read(offset: int) -> int:
            length = min(STEP, segment.length - offset)
            retry_transient(lambda: handle.read(offset, length))
            return length

        try:
            for length in threads.map(read, range(0, segment.length, STEP)):
                progress(length)
        finally:
            handle.close()


# -- publishing
def recover(
    store: Store,
    view: StripedStore,
    path: bytes,
    *,
    to: bytes = b"",
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _size: None,
) -> RecoveryPlan:
    """Make a file of the newest record of `path`, under that name or as `to` in the same directory. Returns its plan.

    Only what is named by `to` is replaced, or the very version that the record continues. Raises NotFound where there
    is no record, Busy while somebody writes one of the names, Exists, and StoreError when nothing was durable.
    """
    records = find_records(store, path)
    if not records:
        raise NotFound(f"{shown(path)} has no record of an fsync", hint="only what was made durable can be recovered")
    found = records[0]
    if is_obsolete(store, view, found.record, found.path):
        raise NotFound(f"what the record of {shown(path)} names is published already, or gone")
    target = to or path
    if dry_run:
        return _useful(plan_recovery(store, view, found, progress))
    copied = reserved_names.new_version()
    with _locks(store, sorted({path, target}), (found.record.version, *versions_of(found.record), copied)) as locks:

        def alive(size: int) -> None:
            locks.renew_if_due()
            progress(size)

        for version in versions_of(found.record):
            put_tombstone(store, version)  # so that a gc that has judged it already looks again and lets it be
        planned = _useful(plan_recovery(store, view, found, alive))
        _publish(store, view, planned, target, copied, replace_=bool(to), locks=locks)
        for each in reversed(found.paths):  # an older record alone would be recovered again, without what came later
            with contextlib.suppress(NotFound):
                store.remove(each)
    return planned


def _useful(planned: RecoveryPlan) -> RecoveryPlan:
    if not planned.length or (planned.base is not None and planned.length == planned.base.length):
        raise StoreError(f"nothing of {shown(planned.found.file)} can be recovered: {planned.lost or 'no bytes'}")
    return planned


def _publish(
    store: Store,
    view: StripedStore,
    planned: RecoveryPlan,
    target: bytes,
    copied: str,
    *,
    replace_: bool,
    locks: _Locks,
) -> None:
    """Give `target` the planned bytes. copied: version of a copy, where one is needed."""
    there = status_of(store, target)
    if there is not None and not replace_ and not (planned.base and is_version_of(store, view, target, planned.base)):
        raise Exists(
            f"{shown(target)} exists", hint="give another name by --to; --to this very name replaces what is there"
        )
    draft = planned.found.draft
    own = [path for path, _ in planned.pieces[1 if planned.base else 0 :]]
    if planned.manifest is not None:
        _write_manifest(store, draft, planned.manifest)
    elif store.capabilities.concat and (planned.base is None or target == planned.found.file):
        _join(store, draft, own, locks.renew_if_due)
        own = []
        if planned.base is not None:
            if not is_version_of(store, view, target, planned.base):
                raise StaleVersion(f"{shown(target)} was changed meanwhile")
            locks.commit(lambda: store.concat(target, [draft]))
            return
    else:
        folder, name = split_path(planned.found.file)
        draft = join_path(folder, reserved_names.draft_name(name, copied))
        _copy(store, draft, planned.pieces, locks.renew_if_due)
    if planned.found.record.mode is not None and store.capabilities.attributes:
        store.set_attributes(draft, Attributes(mode=planned.found.record.mode))
    locks.commit(lambda: store.rename(draft, target, replace=there is not None))
    for path in own:
        with contextlib.suppress(StoreError):  # gc finds it
            store.remove(path)
    for part in planned.manifest.parts if planned.manifest else ():
        if not exists(store, part.path()):
            raise StoreError(f"{shown(target)} is published, but its part {shown(part.path())} vanished meanwhile")


def _write_manifest(store: Store, draft: bytes, manifest: Manifest) -> None:
    if (listed := manifest.parts_list()) is not None:
        store.put(listed[0], [listed[1]], replace=True)
    data = manifest.to_bytes()
    _write(store, draft, [data], len(data), MANIFEST_BLOCK_SIZE)


def _join(store: Store, draft: bytes, paths: Sequence[bytes], keep: Callable[[], None]) -> None:
    """Join the bytes of all files, in order, under the name `draft`, which may be the first of them."""
    first, *rest = paths
    if first != draft:
        store.rename(first, draft, replace=True)
    home = split_path(draft)[0]
    for index, path in enumerate(rest):
        if split_path(path)[0] != home:  # only what lies together can be joined
            rest[index] = join_path(home, split_path(path)[1])
            store.rename(path, rest[index], replace=True)
    for at in range(0, len(rest), SOURCES_AT_ONCE):
        keep()
        retry_transient(partial(store.concat, draft, rest[at : at + SOURCES_AT_ONCE]))  # replicas may be reported late


def _copy(store: Store, draft: bytes, pieces: Sequence[tuple[bytes, int]], keep: Callable[[], None]) -> None:
    def data() -> Iterator[Buffer]:
        for path, length in pieces:
            handle = store.open(path)
            try:
                if handle.status.length != length:
                    raise StoreError(f"{shown(path)} changed meanwhile")
                for offset in range(0, length, _PIECE):
                    keep()
                    yield retry_transient(partial(handle.read, offset, min(_PIECE, length - offset)))
            finally:
                handle.close()

    _write(store, draft, data(), sum(length for _, length in pieces), 0)


def _write(store: Store, path: bytes, data: Iterable[Buffer], length: int, block_size: int) -> None:
    with contextlib.suppress(NotFound):
        store.remove(path)
    store.create(path, block_size=block_size, length=length).complete(data)


class _Locks:
    """The locks of the files that a recovery writes; none where the store cannot lock."""

    def __init__(self) -> None:
        self.held: list[FileLock] = []

    def renew_if_due(self) -> None:
        """To be called now and then. Raises DraftLost where one was lost."""
        for lock in self.held:
            lock.renew_if_due()

    def commit(self, step: Callable[[], None]) -> None:
        """The step that others see, fenced as a writer's is (`stripefs.write.file_lock`)."""

        def fenced() -> None:
            for lock in self.held:
                lock.renew_if_due()
                lock.assert_held()
            step()

        retry_transient(fenced)


@contextlib.contextmanager
def _locks(store: Store, paths: Sequence[bytes], versions: Sequence[str]) -> Iterator[_Locks]:
    """Hold the locks of these files. Raises Busy."""
    locks = _Locks()
    try:
        if store.capabilities.put_if_absent:
            for path in paths:
                locks.held.append(_take(store, path, versions))
        yield locks
    finally:
        for lock in locks.held:
            lock.release()


def _take(store: Store, path: bytes, versions: Sequence[str]) -> FileLock:
    owner = reserved_names.new_version()  # by which a second try knows what the first has done
    return retry_transient(lambda: acquire(store, path, versions, owner))


def _part(part: RecordPart) -> Part:
    inside = pooled(part.path)
    if inside is None:
        raise StoreError(f"the record names a part {shown(part.path)} that is in no pool")
    try:
        return Part(*inside, part.length, bytes.fromhex(part.digest))
    except ValueError:
        raise StoreError(f"the record names a part {shown(part.path)} without a digest") from None
