"""What images a store has, and taking one away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from imagefs.errors import DamagedObject, FormatError, NoSuchImage
from imagefs.format.manifest import Manifest
from imagefs.repository.images import Images, is_source
from imagefs.repository.snapshots import Snapshots
from stripefs.errors import ConfigError, Unsupported

__all__ = ["Row", "drop_images", "ensure_there", "list_images", "must_list", "remove_image"]

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Row:
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


def list_images(images: Images) -> list[Row]:
    """All images, those with tags first, by name; then the newest first. Raises StoreErrors."""
    must_list(images)
    found = images.images()
    tags: dict[str, list[str]] = {}
    for tag, digest in images.tags().items():
        tags.setdefault(digest, []).append(tag)

    def look(digest: str) -> Row | None:
        names, stored = tuple(tags.get(digest, ())), found[digest].mtime_ns / 1e9
        try:
            return _row(digest, names, stored, images.manifest(digest))
        except NoSuchImage:
            return None  # removed since it was listed
        except (DamagedObject, FormatError) as error:
            return Row(digest, names, stored, error=error.message)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = [row for row in pool.map(look, found) if row is not None]
    return sorted(rows, key=lambda row: (not row.tags, row.tags, -row.stored_at, row.digest))


def remove_image(images: Images, name: str) -> tuple[list[str], list[str]]:
    """Take a tag away, or with a digest all tags of an image; and the image, when no tag is left that names it.

    So goes the image it was optimised from, when it has no tag either. Answers the tags and the digests that went.
    What they were made of stays in the store until `gc`. Raises NoSuchImage, ConfigError for the image of a dependency
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


def _forget_sources(images: Images, rows: Iterable[Row], gone: Collection[str]) -> None:
    """Let each OCI manifest that stands for an image that is gone stand for the newest that is left of it, or none."""
    of_source: dict[str, list[Row]] = {}
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


def _row(digest: str, tags: tuple[str, ...], stored_at: float, manifest: Manifest) -> Row:
    config = manifest.config
    parts = (config.get("os"), config.get("architecture"), config.get("variant"))
    return Row(
        digest,
        tags,
        stored_at,
        manifest.metadata.size + sum(device.size for device in manifest.devices),
        "/".join(str(part) for part in parts if part),
        manifest.source,
        manifest.base,
    )
