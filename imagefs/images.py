"""Images in a store: what lies where, each object under its digest, checked when it is read.

    packs/ab/abcdef…      blocks, one behind the other
    indexes/ab/abcdef…    block indexes
    metadata/ab/abcdef…   EROFS images, compressed
    images/abcdef…        manifests
    tags/NAME             the digest of a manifest

Objects never change, so whoever finds one there need not write it. A manifest is written after all it names, a tag
after its manifest: an image that is there is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Iterator

import lz4.frame

from imagefs.errors import DamagedObject, FormatError, NoSuchImage
from imagefs.format.index import Index, Pack
from imagefs.format.manifest import Manifest, Metadata
from stripefs.errors import Exists, NotFound
from stripefs.store.base import Store

__all__ = ["Images"]

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HEX = re.compile(r"[0-9a-f]{64}")
_METADATA_LIMIT = 4 << 30


class Images:
    """The images in `store`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- writing -------------------------------------------------------------------------------------------------

    def put_pack(self, pack: Pack, data: bytes) -> None:
        self._put(_path("packs", pack.digest.hex()), data)

    def put_index(self, data: bytes) -> str:
        return self._put_named("indexes", data)

    def put_metadata(self, data: bytes) -> Metadata:
        packed = lz4.frame.compress(data, compression_level=lz4.frame.COMPRESSIONLEVEL_MINHC, store_size=True)
        return Metadata(hashlib.sha256(data).hexdigest(), len(data), self._put_named("metadata", packed))

    def put(self, manifest: Manifest, tag: str = "") -> str:
        """Store the manifest and let `tag` name it; its digest. Everything it names must be stored already."""
        data = manifest.to_json()
        digest = hashlib.sha256(data).hexdigest()
        self._put(f"/images/{digest}".encode(), data)
        if tag:
            self.store.put(_tag_path(tag), [digest.encode()], replace=True)
        return digest

    # -- reading -------------------------------------------------------------------------------------------------

    def tags(self) -> dict[str, str]:
        """Digest of the manifest by tag."""
        return {name: self.resolve(name) for name in self._names(b"/tags") if _TAG.fullmatch(name)}

    def digests(self) -> list[str]:
        """Of all manifests."""
        return [name for name in self._names(b"/images") if _HEX.fullmatch(name)]

    def resolve(self, name: str) -> str:
        """The digest that a tag, or a digest, stands for. Raises NoSuchImage."""
        if _HEX.fullmatch(name):
            return name
        try:
            digest = self._read(_tag_path(name)).decode("ascii", "replace")
        except NotFound as error:
            raise NoSuchImage(f"{self.store.url} has no image {name!r}", hint="see `imagefs ls`") from error
        if not _HEX.fullmatch(digest):
            raise DamagedObject(f"the tag {name} in {self.store.url} names no image")
        return digest

    def manifest(self, digest: str) -> Manifest:
        try:
            return Manifest.from_json(self._checked(f"/images/{digest}".encode(), digest))
        except NotFound as error:
            raise NoSuchImage(f"{self.store.url} has no image {digest}", hint="see `imagefs ls`") from error

    def index(self, digest: str) -> Index:
        return Index(self._checked(_path("indexes", digest), digest))

    def metadata(self, entry: Metadata) -> bytes:
        """The EROFS image. Raises DamagedObject."""
        packed = self._checked(_path("metadata", entry.object), entry.object)
        if entry.size > _METADATA_LIMIT:
            raise FormatError(f"metadata of {entry.size} bytes is more than this program takes")
        try:
            with lz4.frame.open(io.BytesIO(packed), "rb") as file:
                data: bytes = file.read(entry.size + 1)  # and not what a bomb would unpack to
        except (RuntimeError, EOFError) as error:
            raise DamagedObject(f"metadata {entry.object} in {self.store.url} cannot be unpacked: {error}") from error
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.digest:
            raise DamagedObject(f"metadata {entry.object} in {self.store.url} holds other bytes than the image says")
        return data

    def _checked(self, path: bytes, digest: str) -> bytes:
        data = self._read(path)
        if hashlib.sha256(data).hexdigest() != digest:
            raise DamagedObject(f"{path.decode()} in {self.store.url} holds other bytes than its name says")
        return data

    def _read(self, path: bytes) -> bytes:
        handle = self.store.open(path)
        try:
            return bytes(handle.read(0, handle.status.length)) if handle.status.length else b""
        finally:
            handle.close()

    def _names(self, folder: bytes) -> Iterator[str]:
        try:
            for batch in self.store.scandir(folder):
                yield from (status.name.decode("utf-8", "replace") for status in batch)
        except NotFound:
            return  # nothing was stored yet

    def _put_named(self, kind: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._put(_path(kind, digest), data)
        return digest

    def _put(self, path: bytes, data: bytes) -> None:
        with contextlib.suppress(Exists):  # the same bytes: its name is their digest
            self.store.put(path, [data])


def _path(kind: str, digest: str) -> bytes:
    return f"/{kind}/{digest[:2]}/{digest}".encode()


def _tag_path(tag: str) -> bytes:
    if not _TAG.fullmatch(tag):
        raise NoSuchImage(f"{tag!r} is no tag", hint="letters, digits, '.', '_' and '-', at most 128")
    return f"/tags/{tag}".encode()
