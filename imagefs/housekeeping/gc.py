"""Removing what no image needs any more, beside builds that go on.

An object goes when no manifest reaches it and it is older than a day by the store's clock; so does a trace or plan
whose image is gone, a trace beyond those that are kept of each workload, and what a writer that died has left. In a
registry an image that was attached to a container image goes a day after a newer one was, or after the container image
is gone; the registry's own garbage collection frees the objects. Right before each removal the manifests are listed
once more and the object's age is looked at again. A build that takes less than half a day loses nothing that it needs:

- Objects that a build stores are young. An object that it finds in the store, and that no image it knows of holds, it
  stores again when that is older than half a day (`Images`), so that is young as well.
- Objects that it shares with an image are kept by that image. When that is removed meanwhile, either the new manifest
  is there before `gc` lists manifests, and keeps what it names, or the build finds the image gone after it stored its
  manifest, takes that away again and fails (`imagefs.build.packs`).

Dependency snapshots that nobody used for a time go by a call of their own, with their images.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from imagefs.errors import DamagedObject, FormatError, NoSuchImage, NoSuchSnapshot
from imagefs.format import is_digest
from imagefs.housekeeping.listing import drop_unnamed, ensure_there, list_snapshots, must_list
from imagefs.progress import Progress
from imagefs.repository.images import GRACE, KINDS, Images, object_path
from imagefs.repository.snapshots import NOTES, Snapshots
from imagefs.repository.traces import KEEP
from stripefs.errors import NotFound, Unsupported
from stripefs.format.reserved_names import is_hidden
from stripefs.store.base import Status
from stripefs.units import shown

__all__ = ["GcResult", "collect", "collect_snapshots"]

_AT_ONCE = 8
"""Images whose documents are read at once: an index has 56 bytes for each block."""

_LISTED = 2.0
"""Seconds for which a listing of manifests counts as that of right now, in a row of removals."""


@dataclass(slots=True)
class GcResult:
    """Objects that were removed, or with `dry_run` would be: paths and bytes; and what stayed only because it is
    young."""

    removed: list[str] = field(default_factory=list)
    bytes: int = 0
    young: int = 0
    young_bytes: int = 0


def collect(
    images: Images,
    *,
    older_than: float = GRACE,
    untagged: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> GcResult:
    """Remove what is not needed and older than so many seconds. With `untagged` images that neither a tag nor a
    dependency snapshot names, and that are attached to no container image, are not needed.

    Less than a day is safe only while nothing is built. Raises Unsupported where a store cannot be listed or written
    to, DamagedObject where a document is damaged, as nobody knows then what it needs, and StoreErrors.
    """
    must_list(images)
    if not images.repository.capabilities.put:
        raise Unsupported(f"{images.url} cannot be written to")
    return _Collection(images, older_than, untagged, dry_run, progress or Progress()).run()


class _Collection:
    def __init__(self, images: Images, older_than: float, untagged: bool, dry_run: bool, progress: Progress) -> None:
        self._images = images
        self._older_than = older_than
        self._untagged = untagged
        self._dry_run = dry_run
        self._progress = progress
        self._found = GcResult()
        self._reach: dict[str, set[bytes]] = {}  # paths that an image needs
        self._bases: dict[str, str] = {}  # the image that another was optimised from
        self._kept: set[str] = set()  # images
        self._needed: set[bytes] = set()
        self._listed = float("-inf")

    def run(self) -> GcResult:
        self._progress.stage("looking")
        self._refresh()
        if self._untagged or self._images.repository.attached():
            self._remove_images()
        for kind in KINDS if self._images.repository.capabilities.list_objects else ():
            for path, size, mtime in self._below(f"/{kind}"):
                name = path.rpartition(b"/")[2].decode("utf-8", "replace")
                is_object = is_digest(name) and path == object_path(kind, name)
                if (is_object and path not in self._needed) or _is_left_over(path):
                    self._remove(path, size, mtime)
        for kind in ("traces", "plans"):
            found = list(self._below(f"/{kind}"))
            surplus = _surplus(path for path, _, _ in found) if kind == "traces" else ()
            for path, size, mtime in found:
                image = path.split(b"/")[2].decode("utf-8", "replace")
                if image not in self._kept or path in surplus or _is_left_over(path):
                    self._remove(path, size, mtime)
        for source, status in self._images.sources().items():
            if not self._stands(source):
                self._remove(f"/sources/{source.removeprefix('sha256:')}".encode(), status.length, status.mtime_ns)
        for kind in ("images", "tags", "sources", "deps", "used", *NOTES):
            for path, size, mtime in self._below(f"/{kind}"):
                if _is_left_over(path):
                    self._remove(path, size, mtime)
        return self._found

    def _stands(self, source: str) -> bool:
        """Tells whether an OCI manifest stands for an image that stays."""
        try:
            return self._images.by_source(source) in self._kept
        except (DamagedObject, NoSuchImage):
            return False

    def _below(self, folder: str) -> Iterator[tuple[bytes, int, int]]:
        return ((path, status.length, status.mtime_ns) for path, status in self._images.files(folder.encode()))

    def _remove_images(self) -> None:
        """Remove the images that were attached to a container image which needs them no more and, with `untagged`,
        those that are attached to none; of these what no tag and no snapshot names and is the base of none that stays.
        """
        stored = self._images.images()
        wanted, listed = self._wanted(stored), time.monotonic()
        kept = wanted | {self._bases[digest] for digest in wanted if digest in self._bases}
        gone = set()
        for digest in sorted(stored.keys() - kept):
            if time.monotonic() - listed > _LISTED:
                wanted, listed = self._wanted(stored), time.monotonic()
            if digest in wanted:
                continue
            if not self._dry_run:
                self._images.remove(digest)
            self._note(f"images/{digest}", stored[digest].length)
            gone.add(digest)
        self._refresh(removed=gone)

    def _wanted(self, stored: Mapping[str, Status]) -> set[str]:
        """The images of `stored` that are named or attached, or too young to be removed."""
        named, attached = self._named(), self._images.repository.attached()
        wanted = {digest for digest in stored if digest in named or not self._is_old(stored[digest].mtime_ns)}
        for digest in stored.keys() - wanted:
            if digest in attached:
                since = attached[digest]
                if since is None or not self._is_old(since):
                    wanted.add(digest)
            elif not self._untagged:
                wanted.add(digest)
        return wanted

    def _named(self) -> set[str]:
        try:
            snapshots = Snapshots(self._images).images_named()
        except (DamagedObject, FormatError) as error:
            raise DamagedObject(
                f"nothing can be removed, as nobody knows what a dependency snapshot needs: {error.message}",
                hint="`imagefs deps rm` takes a damaged one away",
            ) from error
        tags = self._images.tags()
        ensure_there(self._images, tags, snapshots)
        return {*tags.values(), *snapshots.values()}

    def _refresh(self, removed: set[str] | None = None) -> None:
        """List the manifests, and read those that are new. `removed`: those that count as gone, as in a dry run."""
        self._listed = time.monotonic()
        self._kept = self._images.images().keys() - (removed or set())
        new = sorted(self._kept - self._reach.keys())
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for digest, (base, needs) in zip(new, pool.map(self._needs, new), strict=True):
                self._reach[digest] = needs
                if base:
                    self._bases[digest] = base
        self._needed = set().union(*(self._reach[digest] for digest in self._kept))

    def _needs(self, digest: str) -> tuple[str, set[bytes]]:
        """The image that this one was optimised from, and the paths that it needs. Block indexes are read as a whole,
        as only their digests tell that the list of packs in them is right."""
        try:
            manifest = self._images.manifest(digest)
            found = {object_path("metadata", manifest.metadata.object)}
            if manifest.extents:
                found.add(object_path("extents", manifest.extents))
            for device in manifest.devices if self._images.repository.capabilities.list_objects else ():
                found.add(object_path("indexes", device.index))
                found |= {object_path("packs", pack.digest.hex()) for pack in self._images.index(device.index).packs}
        except NoSuchImage:
            return "", set()  # removed since it was listed
        except (DamagedObject, FormatError, NotFound) as error:
            raise DamagedObject(
                f"nothing can be removed, as nobody knows what the image {digest} needs: {error.message}",
                hint="see `imagefs verify`; `imagefs rm` takes a damaged image away",
            ) from error
        return manifest.base or "", found

    def _is_old(self, mtime_ns: int) -> bool:
        return self._images.repository.now_ns() - mtime_ns >= self._older_than * 1e9

    def _remove(self, path: bytes, size: int, mtime_ns: int) -> None:
        if not self._is_old(mtime_ns):
            self._found.young += 1
            self._found.young_bytes += size
            return
        if not self._dry_run:
            if time.monotonic() - self._listed > _LISTED:
                self._refresh()
            try:
                if path in self._needed or not self._is_old(self._images.stat(path).mtime_ns):
                    return
                self._images.discard(path)
            except NotFound:
                return  # another gc
        self._note(shown(path).removeprefix("/"), size)

    def _note(self, path: str, size: int) -> None:
        self._found.removed.append(path)
        self._found.bytes += size
        self._progress.advance(size)


def _surplus(traces: Iterable[bytes]) -> set[bytes]:
    """The traces beyond the newest of each image and workload, which are kept: names sort by time."""
    folders: dict[bytes, list[bytes]] = {}
    for path in traces:
        folders.setdefault(path.rpartition(b"/")[0], []).append(path)
    return {path for found in folders.values() for path in sorted(found)[:-KEEP]}


def _is_left_over(path: bytes) -> bool:
    """Tells whether a writer that died has left it: clients of stores write under such a name first, and locks are
    hidden."""
    name = path.rpartition(b"/")[2]
    return (name.startswith(b".") and name.endswith(b".tmp")) or is_hidden(name)


def collect_snapshots(images: Images, *, older_than: float, dry_run: bool = False) -> tuple[list[str], list[str]]:
    """Take away the snapshots that were not used for so many seconds of the store's clock, and images that were made
    for one and never got its document; the names of the snapshots and the digests of the images that went, or would go.

    Raises Unsupported where a store cannot be listed or written to, and StoreErrors.
    """
    must_list(images)
    if not images.repository.capabilities.put:
        raise Unsupported(f"{images.url} cannot be written to")
    now, snapshots = images.repository.now_ns() / 1e9, Snapshots(images)
    old = [row for row in list_snapshots(images) if now - row.used_at >= older_than]
    of_old = {row.snapshot.image for row in old if row.snapshot is not None}
    if not dry_run:
        for row in old:
            snapshots.remove(row.name)
        for kind in NOTES:
            for name, since in snapshots.notes_since(kind).items():
                if now - since >= older_than:
                    snapshots.forget_note(kind, name)
    found = {*of_old, *_without_document(images, now)}
    return [row.name for row in old], sorted(found) if dry_run else drop_unnamed(images, found)


def _without_document(images: Images, now: float) -> list[str]:
    """Images that a publisher has stored that died, or was not the first: a snapshot's manifest says of which, and has
    no config. Where the document names another image, that may be one that was made from it."""
    snapshots, found = Snapshots(images), []
    known = snapshots.stored()
    for digest, status in images.images().items():
        if now - status.mtime_ns / 1e9 < GRACE:
            continue  # its document may be on its way
        try:
            manifest = images.manifest(digest)
        except (NoSuchImage, DamagedObject, FormatError):
            continue
        if manifest.source and not manifest.config and not _is_needed(snapshots, known, manifest.source, digest):
            found.append(digest)
    return found


def _is_needed(snapshots: Snapshots, known: Container[str], name: str, image: str) -> bool:
    """Tells whether the snapshot of that name is there and needs the image, or that is unknown."""
    try:
        return name in known and snapshots.names(name, image)
    except NoSuchSnapshot:
        return False
    except (NoSuchImage, DamagedObject, FormatError):
        return True
