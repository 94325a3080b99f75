"""Lists the images and dependency snapshots of a store, removes one, and describes one.

An image is described by its documents, devices, blocks, packs, and what it shares with others. The files of a snapshot
are told as a line for each name, so that two can be compared without a mount.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from imagefs.errors import DamagedObject, FormatError, NoSuchImage, NoSuchSnapshot
from imagefs.format import is_source
from imagefs.format.documents import Manifest, Snapshot
from imagefs.format.erofs import ErofsImage
from imagefs.format.erofs.read import Stat, entries
from imagefs.format.index import NOWHERE, Index
from imagefs.format.inodes import DIGEST, HOLE, ExtentTable, digest_of, shown
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from stripefs.errors import ConfigError, NotFound, Unsupported

__all__ = [
    "ImageRow",
    "SnapshotRow",
    "describe",
    "describe_files",
    "drop_images",
    "drop_unnamed",
    "ensure_there",
    "list_images",
    "list_snapshots",
    "must_list",
    "remove_image",
    "remove_snapshot",
    "sharing",
]

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ImageRow:
    """An image: its tags, when its manifest was stored (seconds since 1970), and what that says.

    size is in bytes: its devices and its metadata. base is the image that it was optimised from, "" for none. error
    says why a manifest cannot be read; then the rest says nothing.
    """

    digest: str
    tags: tuple[str, ...]
    stored_at: float
    size: int = 0
    platform: str = ""
    source: str = ""
    base: str = ""
    error: str = ""


def must_list(images: Images) -> None:
    """Raise Unsupported where a store cannot say what is in it."""
    if not images.repository.capabilities.list:
        raise Unsupported(
            f"{images.url} cannot be listed",
            hint="name an image as STORE#TAG, or ask where the store lies, e.g. its directory or bucket",
        )


def list_images(images: Images) -> list[ImageRow]:
    """All images, those with tags first, by name; then the newest first. Raises StoreErrors."""
    must_list(images)
    found = images.images()
    tags: dict[str, list[str]] = {}
    for tag, digest in images.tags().items():
        tags.setdefault(digest, []).append(tag)

    def look(digest: str) -> ImageRow | None:
        names, stored = tuple(tags.get(digest, ())), found[digest].mtime_ns / 1e9
        try:
            return _image_row(digest, names, stored, images.manifest(digest))
        except NoSuchImage:
            return None  # removed since it was listed
        except (DamagedObject, FormatError) as error:
            return ImageRow(digest, names, stored, error=error.message)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = [row for row in pool.map(look, found) if row is not None]
    return sorted(rows, key=lambda row: (not row.tags, row.tags, -row.stored_at, row.digest))


def remove_image(images: Images, name: str) -> tuple[list[str], list[str]]:
    """Take a tag away, or with a digest all tags of an image; and the image, when no tag is left that names it.

    So goes the image it was optimised from, when it has no tag either. Answers the tags and the digests that went.
    Their objects stay in the store until `gc`. Raises NoSuchImage, ConfigError for the image of a dependency
    snapshot, StoreErrors, and DamagedObject, before anything goes, where another tag may have named the image.
    """
    try:
        digest = images.resolve(name)
    except DamagedObject:  # a tag that names nothing
        images.untag(name)
        return [name], []
    tags = images.tags()
    is_tag = name in tags
    gone = [tag for tag, named in tags.items() if (tag == name if is_tag else named == digest)]
    snapshots = {image: snapshot for snapshot, image in Snapshots(images).images_named().items()}
    if not is_tag and digest in snapshots:
        raise ConfigError(
            f"the image {digest[:12]} is that of a dependency snapshot",
            hint=f"imagefs deps rm {images.url} {snapshots[digest][:12]}",
        )
    left = {tag: named for tag, named in tags.items() if tag not in gone}
    kept = {*left.values(), *snapshots}
    goes = digest not in kept and (not is_tag or images.has(digest))
    if goes:
        ensure_there(images, left, {snapshot: image for image, snapshot in snapshots.items()})
    for tag in gone:
        images.untag(tag)
    return gone, drop_images(images, [digest], kept) if goes else []


def ensure_there(images: Images, tags: Mapping[str, str], snapshots: Mapping[str, str]) -> None:
    """Raise DamagedObject for an image that a tag or a dependency snapshot names and that is not stored: a flipped bit
    may have made its digest of that of another image, which then seems to be named by nothing."""
    stored = images.images()
    for what, command, named in (("tag", "rm", tags), ("dependency snapshot", "deps rm", snapshots)):
        for name, digest in named.items():
            if digest not in stored and not images.has(digest):
                raise DamagedObject(
                    f"no image can be removed, as the {what} {name} names an image that is not there, {digest[:12]}",
                    hint=f"it may be damaged; `imagefs {command}` takes it away",
                )


def drop_images(images: Images, digests: Iterable[str], kept: Collection[str]) -> list[str]:
    """Take images away but for those that are kept, and then what they were optimised from, unless that is kept or
    another image was made from it too; the digests that went. Raises NoSuchImage for one that is not there."""
    gone = sorted({*digests} - {*kept})
    if not gone:
        return []
    rows = list_images(images)
    bases = {row.digest: row.base for row in rows if row.base}
    for digest in gone:
        images.remove(digest)
    needed = {*kept, *gone, *(base for digest, base in bases.items() if digest not in gone)}
    left = sorted({bases[digest] for digest in gone if digest in bases} - needed)
    left = [base for base in left if images.has(base)]
    for base in left:
        images.remove(base)
    _forget_sources(images, rows, {*gone, *left})
    return [*gone, *left]


def _forget_sources(images: Images, rows: Iterable[ImageRow], gone: Collection[str]) -> None:
    """Let each OCI manifest that stands for an image that is gone stand for the newest that is left of it, or none."""
    of_source: dict[str, list[ImageRow]] = {}
    for row in rows:
        if is_source(row.source):
            of_source.setdefault(row.source, []).append(row)
    for source, found in of_source.items():
        if not any(row.digest in gone for row in found):
            continue
        left = [row for row in found if row.digest not in gone]
        try:
            images.by_source(source)
        except (DamagedObject, NoSuchImage):
            if left:
                images.set_source(source, max(left, key=lambda row: row.stored_at).digest)
            else:
                images.unset_source(source)


def drop_unnamed(images: Images, digests: Iterable[str]) -> list[str]:
    """Remove these images but for those that something names: a publisher may have come meanwhile. Raises
    DamagedObject, and removes none, where one may be named by what is damaged."""
    tags, snapshots = images.tags(), Snapshots(images).images_named()
    kept = {*tags.values(), *snapshots.values()}
    gone = [digest for digest in digests if digest not in kept and images.has(digest)]
    if gone:
        ensure_there(images, tags, snapshots)
    return drop_images(images, gone, kept)


def _image_row(digest: str, tags: tuple[str, ...], stored_at: float, manifest: Manifest) -> ImageRow:
    config = manifest.config
    parts = (config.get("os"), config.get("architecture"), config.get("variant"))
    return ImageRow(
        digest,
        tags,
        stored_at,
        manifest.metadata.size + sum(device.size for device in manifest.devices),
        "/".join(str(part) for part in parts if part),
        manifest.source,
        manifest.base,
    )


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
    return drop_unnamed(images, [image] if image else [])


def describe(images: Images, digest: str) -> dict[str, Any]:
    """All there is to say about one image without any other, fit for JSON. Raises NoSuchImage, DamagedObject."""
    manifest = images.manifest(digest)
    indexes = _indexes(images, manifest)
    packs: dict[bytes, tuple[int, Counter[bytes]]] = {}
    for index in indexes:
        for block in range(index.blocks):
            place = index.place(block)
            if place.pack != NOWHERE:
                pack = index.packs[place.pack]
                packs.setdefault(pack.digest, (pack.length, Counter()))[1][place.digest] = place.stored
    return {
        "store": images.url,
        "digest": digest,
        "source": manifest.source,
        "base": manifest.base,
        "metadata": asdict(manifest.metadata),
        "extents": manifest.extents,
        "devices": [
            {**asdict(device), "blocks": _usage([index])}
            for device, index in zip(manifest.devices, indexes, strict=True)
        ],
        "blocks": _usage(indexes),
        "packs": [
            {"digest": name.hex(), "size": length, "blocks": len(used), "used_bytes": used.total()}
            for name, (length, used) in packs.items()
        ],
        "config": manifest.config,
    }


def _usage(indexes: list[Index]) -> dict[str, int]:
    """Blocks: all, those that differ and are stored, those of zeros; and bytes stored, each once."""
    stored = _stored(indexes)
    total = sum(index.blocks for index in indexes)
    zeros = total - sum(index.stored for index in indexes)
    return {"total": total, "stored": len(stored), "zeros": zeros, "stored_bytes": sum(stored.values())}


def sharing(images: Images, digest: str) -> list[dict[str, Any]]:
    """Each other image that has blocks of this one, with how many and their bytes as they are stored, fit for JSON; the
    largest share first, and images that cannot be read left out.

    Reads the block indexes of all images. Raises as `describe` does.
    """
    own = _stored(_indexes(images, images.manifest(digest)))
    tags: dict[str, list[str]] = {}
    for tag, named in images.tags().items():
        tags.setdefault(named, []).append(tag)
    found: list[dict[str, Any]] = []
    for other in images.images():
        if other == digest:
            continue
        try:
            indexes = _indexes(images, images.manifest(other))
        except (NoSuchImage, NotFound, DamagedObject, FormatError):
            continue  # `verify` says what is wrong with it
        common = own.keys() & {one for index in indexes for one in index.digests()}
        if common:
            size = sum(own[one] for one in common)
            found.append({"image": other, "tags": tags.get(other, []), "blocks": len(common), "bytes": size})
    return sorted(found, key=lambda share: (-share["bytes"], share["image"]))


def _indexes(images: Images, manifest: Manifest) -> list[Index]:
    return [images.index(device.index) for device in manifest.devices]


def _stored(indexes: list[Index]) -> dict[bytes, int]:
    """Stored bytes of each block by its digest."""
    places = (index.place(block) for index in indexes for block in range(index.blocks))
    return {place.digest: place.stored for place in places if place.pack != NOWHERE}


def describe_files(image: ErofsImage, table: ExtentTable) -> dict[str, str]:
    """By path, for everything below the root but its time: kind, permissions, owner, and of files size and content.

    The image is one without a hot device, with its table of extents. Raises FormatError.
    """
    found: dict[str, str] = {}
    contents: dict[int, str] = {}  # of files by inode, which may have many names
    for path, inode in entries(image):
        if not inode.is_directory and inode.number not in contents:
            contents[inode.number] = _file_content(image, table, inode)
        rights = f"{stat.S_IMODE(inode.mode):04o} {inode.uid}:{inode.gid}"
        found[shown(path)] = f"{_file_kind(inode)} {rights} {contents.get(inode.number, '')}".rstrip()
    return found


def _file_kind(inode: Stat) -> str:
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    return kinds.get(stat.S_IFMT(inode.mode), "special")


def _file_content(image: ErofsImage, table: ExtentTable, inode: Stat) -> str:
    if stat.S_ISLNK(inode.mode):
        return shown(image.content(inode))
    if not inode.is_file:
        return f"{inode.rdev[0]},{inode.rdev[1]}"
    chunks = image.chunks(inode)
    if chunks is None:
        return f"{inode.size} bytes {digest_of(image.content(inode)).hex()}"
    digests = b"".join(_extent_digest(table, address) for address in chunks[1])
    return f"{inode.size} bytes {digest_of(digests).hex()}"


def _extent_digest(table: ExtentTable, address: int) -> bytes:
    if address == HOLE:
        return bytes(DIGEST)
    found = table.digest_at(address & 0xFFFFFFFF)
    if found is None:
        raise FormatError("the image has an extent that its extents table does not know")
    return found
