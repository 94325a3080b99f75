"""Dependency snapshots of a store: listing them, what one holds, and removing those that nobody uses any more.

The content of a snapshot is told as a line for each name, so that two can be compared without a mount.
"""

from __future__ import annotations

import stat
from collections.abc import Container, Iterable
from dataclasses import dataclass

from imagefs.errors import DamagedObject, FormatError, NoSuchImage, NoSuchSnapshot
from imagefs.format.documents import Snapshot
from imagefs.format.erofs import ErofsImage
from imagefs.format.erofs.read import Stat, entries
from imagefs.format.inodes import DIGEST, HOLE, ExtentTable, digest_of, shown
from imagefs.housekeeping.listing import drop_images, ensure_there, must_list
from imagefs.repository.images import GRACE, Images
from imagefs.repository.snapshots import NOTES, Snapshots
from stripefs.errors import Unsupported

__all__ = ["SnapshotRow", "collect_snapshots", "describe", "list_snapshots", "remove_snapshot"]


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A snapshot: when it was stored and when used last, in seconds since 1970; the latter is known by a day.

    snapshot: None for a document that cannot be read, for the reason in `error`. size: bytes of its devices and
    metadata, 0 where the image is not there.
    """

    name: str
    stored_at: float
    used_at: float
    snapshot: Snapshot | None = None
    size: int = 0
    error: str = ""


def list_snapshots(images: Images) -> list[SnapshotRow]:
    """All of them, the one used last first. Raises Unsupported where a store cannot be listed, and StoreErrors."""
    must_list(images)
    snapshots = Snapshots(images)
    used, rows = snapshots.used(), []
    for name, status in snapshots.stored().items():
        stored = status.mtime_ns / 1e9
        times = stored, max(stored, used.get(name, 0.0))
        try:
            snapshot = snapshots.load(name)
            manifest = images.manifest(snapshot.image)
        except NoSuchSnapshot:
            continue  # removed since it was listed
        except (DamagedObject, FormatError, NoSuchImage) as error:
            rows.append(SnapshotRow(name, *times, error=error.message))
        else:
            size = manifest.metadata.size + sum(device.size for device in manifest.devices)
            rows.append(SnapshotRow(name, *times, snapshot, size))
    return sorted(rows, key=lambda row: (-row.used_at, row.name))


def remove_snapshot(images: Images, name: str) -> list[str]:
    """Take a snapshot away, and its image unless that has a tag; the digests of images that went.

    Hosts that have it mounted go on as long as its blocks are in the store, which is until `gc`. Raises NoSuchSnapshot.
    """
    snapshots = Snapshots(images)
    try:
        image = snapshots.load(name).image
    except (DamagedObject, FormatError):
        image = ""
    snapshots.remove(name)
    return _drop(images, [image] if image else [])


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
        for name, since in snapshots.unpublished_since().items():
            if now - since >= older_than:
                snapshots.forget_unpublished(name)
        for kind in NOTES:
            for name, since in snapshots.notes_since(kind).items():
                if now - since >= older_than:
                    snapshots.forget_note(kind, name)
    found = {*of_old, *_without_document(images, now)}
    return [row.name for row in old], sorted(found) if dry_run else _drop(images, found)


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
        if manifest.source and not manifest.config and not _needed(snapshots, known, manifest.source, digest):
            found.append(digest)
    return found


def _needed(snapshots: Snapshots, known: Container[str], name: str, image: str) -> bool:
    """Tells whether the snapshot of that name is there and needs the image, or nobody can tell."""
    try:
        return name in known and snapshots.names(name, image)
    except NoSuchSnapshot:
        return False
    except (NoSuchImage, DamagedObject, FormatError):
        return True


def _drop(images: Images, digests: Iterable[str]) -> list[str]:
    """Remove these images but for those that something names: a publisher may have come meanwhile. Raises
    DamagedObject, and removes none, where one may be named by what is damaged."""
    tags, snapshots = images.tags(), Snapshots(images).images_named()
    kept = {*tags.values(), *snapshots.values()}
    gone = [digest for digest in digests if digest not in kept and images.has(digest)]
    if gone:
        ensure_there(images, tags, snapshots)
    return drop_images(images, gone, kept)


def describe(image: ErofsImage, table: ExtentTable) -> dict[str, str]:
    """By path, for everything below the root but its time: kind, permissions, owner, and of files size and content.

    The image is one without a hot device, with its table of extents. Raises FormatError.
    """
    found: dict[str, str] = {}
    contents: dict[int, str] = {}  # of files by inode, which may have many names
    for path, inode in entries(image):
        if not inode.is_directory and inode.number not in contents:
            contents[inode.number] = _content(image, table, inode)
        rights = f"{stat.S_IMODE(inode.mode):04o} {inode.uid}:{inode.gid}"
        found[shown(path)] = f"{_kind(inode)} {rights} {contents.get(inode.number, '')}".rstrip()
    return found


def _kind(inode: Stat) -> str:
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    return kinds.get(stat.S_IFMT(inode.mode), "special")


def _content(image: ErofsImage, table: ExtentTable, inode: Stat) -> str:
    if stat.S_ISLNK(inode.mode):
        return shown(image.content(inode))
    if not inode.is_file:
        return f"{inode.rdev[0]},{inode.rdev[1]}"
    chunks = image.chunks(inode)
    if chunks is None:
        return f"{inode.size} bytes {digest_of(image.content(inode)).hex()}"
    digests = b"".join(_digest(table, address) for address in chunks[1])
    return f"{inode.size} bytes {digest_of(digests).hex()}"


def _digest(table: ExtentTable, address: int) -> bytes:
    if address == HOLE:
        return bytes(DIGEST)
    found = table.digest_at(address & 0xFFFFFFFF)
    if found is None:
        raise FormatError("the image has an extent that its extents table does not know")
    return found
