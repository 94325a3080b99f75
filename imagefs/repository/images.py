"""Images in a repository, each object under its digest (docs/format.md, Store), checked when it is read.

Objects never change, so whoever finds one there need not write it, unless it may be on its way out: what no manifest
names is removed once it is older than a day (`imagefs.housekeeping.gc`), so an object that is half that old is written
again by whoever needs it. A manifest is written after all it names, a tag after its manifest: an image that is there
is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import lz4.frame

from imagefs.errors import DamagedObject, FormatError, NoSuchImage
from imagefs.format import is_digest, is_source
from imagefs.format.documents import Manifest, Metadata
from imagefs.format.index import Index, Pack
from imagefs.format.inodes import ExtentTable
from imagefs.reference import TAG
from imagefs.repository.base import Repository
from stripefs.errors import Exists, NotFound, StaleVersion, StoreError, Transient
from stripefs.retry import RetryPolicy, retry
from stripefs.store.base import Kind, Status

__all__ = ["GRACE", "KINDS", "Images", "object_path"]

KINDS = ("packs", "indexes", "metadata", "extents")
"""Objects named by their digests that manifests reach."""

GRACE = 24 * 3600.0
"""Seconds that an object nobody names is kept at least: a build may be about to name it."""

_T = TypeVar("_T")
_AT_ONCE = 16
_LONGEST_PAUSE = 5.0  # seconds before a call that failed is tried again
_BEGINNING = re.compile(r"[0-9a-f]{12,63}")
_METADATA_LIMIT = 4 << 30


class Images:
    """The images in `repository`. A call that fails and may succeed later is tried again for `patience` seconds.

    copies(path, digest): the object at `path` from elsewhere, right by its digest, None where it is not to be had.
    """

    def __init__(
        self,
        repository: Repository,
        patience: float = 0.0,
        *,
        copies: Callable[[bytes, str], bytes | None] | None = None,
    ) -> None:
        self.repository = repository
        self.url = repository.url
        self._copies = copies
        self.damaged_packs: frozenset[bytes] = frozenset()
        """Digests of packs that count as missing: nothing shares their blocks, and what is stored replaces them."""
        self._retries = RetryPolicy(patience, longest=_LONGEST_PAUSE, errors=(Transient, StaleVersion))

    # -- writing -------------------------------------------------------------------------------------------------

    def put_pack(self, pack: Pack, data: bytes) -> bool:
        """Tells whether it had to be written: False where it is there already."""
        path = object_path("packs", pack.digest.hex())
        if pack.digest in self.damaged_packs:
            self._again(lambda: self.repository.put(path, data, replace=True))
            return True
        return self._put(path, data)

    def replicate_packs(self, packs: Sequence[Pack], replicas: int) -> None:
        """Let each of these packs have that many replicas. Raises NotFound and Unsupported."""
        for pack in packs:
            path = object_path("packs", pack.digest.hex())
            self._again(lambda path=path: self.repository.set_replication(path, replicas))  # type: ignore[misc]

    def has_pack(self, pack: Pack) -> bool:
        """Tells whether the pack is there with all its bytes, unread."""
        if pack.digest in self.damaged_packs:
            return False
        try:
            return self.stat(object_path("packs", pack.digest.hex())).length == pack.length
        except NotFound:
            return False

    def check_packs(self, packs: Sequence[Pack]) -> None:
        """Raise DamagedObject unless each of these packs is there with all its bytes; none is read."""
        with ThreadPoolExecutor(min(_AT_ONCE, len(packs) or 1)) as pool:
            for pack, there in zip(packs, pool.map(self.has_pack, packs), strict=True):
                if not there:
                    raise DamagedObject(f"{self.url} lacks the pack {pack.digest.hex()[:12]}, or part of it")

    def is_damaged(self, pack: Pack) -> bool:
        """Tells whether the pack is there and holds other bytes than its name says. All of it is read."""
        try:
            self._read_verified(object_path("packs", pack.digest.hex()), pack.digest.hex())
        except DamagedObject:
            return True
        except NotFound:
            pass
        return False

    def put_metadata(self, data: bytes) -> Metadata:
        packed = lz4.frame.compress(data, compression_level=lz4.frame.COMPRESSIONLEVEL_MINHC, store_size=True)
        return Metadata(hashlib.sha256(data).hexdigest(), len(data), self.put_object("metadata", packed))

    def put_object(self, kind: str, data: bytes) -> str:
        """Store an object of one of `KINDS`; its digest."""
        digest = hashlib.sha256(data).hexdigest()
        path = object_path(kind, digest)
        if not self._put(path, data):
            self._mend(path, data, digest)
        return digest

    def keeps(self, kind: str, digest: str, length: int = -1) -> bool:
        """Tells whether the object is there, with so many bytes where `length` is given, and no gc removes it soon.
        It is not read."""
        try:
            found = self.stat(object_path(kind, digest))
        except NotFound:
            return False
        return length in (-1, found.length) and self._is_fresh(found)

    def put(self, manifest: Manifest, tag: str = "") -> str:
        """Store the manifest and let `tag` name it; its digest. Everything it names must be stored already."""
        data = manifest.to_json()
        digest = hashlib.sha256(data).hexdigest()
        if not self._put(_image_path(digest), data):
            self._mend(_image_path(digest), data, digest)
        if tag:
            self.tag(tag, digest)
        return digest

    def tag(self, tag: str, digest: str) -> None:
        """Let `tag` name that image from now on."""
        self._again(lambda: self.repository.put(_tag_path(tag), digest.encode(), replace=True))

    def set_source(self, source: str, digest: str) -> None:
        """Let the OCI manifest, or the chain id, `source` (sha256:HEX) stand for that image from now on."""
        self._again(lambda: self.repository.put(_source_path(source), digest.encode(), replace=True))

    def unset_source(self, source: str) -> None:
        """Let that OCI manifest stand for no image."""
        with contextlib.suppress(NotFound):
            self.discard(_source_path(source))

    def untag(self, tag: str) -> None:
        """Raises NoSuchImage."""
        try:
            self.discard(_tag_path(tag))
        except NotFound as error:
            raise self._unknown(tag) from error

    def remove(self, digest: str) -> None:
        """Take the manifest away; what it names stays until `imagefs gc`. Raises NoSuchImage."""
        try:
            self.discard(_image_path(digest))
        except NotFound as error:
            raise self._unknown(digest) from error

    def create(self, path: bytes, data: bytes, *, replace: bool = False) -> None:
        """Make an object of another kind. Raises Exists where one is, unless it is to be replaced."""
        self._again(lambda: self.repository.put(path, data, replace=replace))

    def discard(self, path: bytes) -> None:
        """Remove an object. Raises NotFound."""
        self._again(lambda: self.repository.remove(path))

    # -- reading -------------------------------------------------------------------------------------------------

    def tags(self) -> dict[str, str]:
        """Digest of the manifest by tag, in the order of the names. Raises Unsupported where nothing can be listed."""

        def look(name: str) -> tuple[str, str]:
            try:
                return name, self.resolve(name)
            except NoSuchImage:
                return name, ""  # removed meanwhile

        names = [name for name, _ in self._names(b"/tags") if TAG.fullmatch(name)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return {name: digest for name, digest in pool.map(look, names) if digest}

    def images(self) -> dict[str, Status]:
        """All manifests by digest, and when they were stored. Raises Unsupported where nothing can be listed."""
        return {name: status for name, status in self._names(b"/images") if is_digest(name)}

    def files(self, folder: bytes) -> Iterator[tuple[bytes, Status]]:
        """Path and status of every file below a folder of the store. Raises Unsupported where nothing can be listed."""
        for _, status in self._names(folder):
            path = folder + b"/" + status.name
            if status.kind is Kind.DIRECTORY:
                yield from self.files(path)
            else:
                yield path, status

    def sources(self) -> dict[str, Status]:
        """The OCI manifests that stand for images (sha256:HEX), and when that was said. Raises Unsupported."""
        return {f"sha256:{name}": status for name, status in self._names(b"/sources") if is_digest(name)}

    def has(self, digest: str) -> bool:
        """Tells whether there is an image with that digest, unread."""
        try:
            self.stat(_image_path(digest))
        except NotFound:
            return False
        return True

    def resolve(self, name: str) -> str:
        """The digest that a tag, a digest, or the beginning of one stands for. Raises NoSuchImage."""
        if is_digest(name):
            return name
        try:
            digest = self.read(_tag_path(name)).decode("ascii", "replace")
        except NotFound as error:
            if _BEGINNING.fullmatch(name) and len(found := self._beginning_with(name)) == 1:
                return found[0]
            raise self._unknown(name) from error
        if not is_digest(digest):
            raise DamagedObject(f"the tag {name} in {self.url} names no image")
        return digest

    def by_source(self, source: str) -> str:
        """The digest of the image that was built last from the OCI manifest `source` (sha256:HEX), or from layers with
        that chain id.

        Raises NoSuchImage, DamagedObject.
        """
        unknown = NoSuchImage(f"{self.url} has no image of {source}", hint="imagefs build makes one")
        try:
            digest = self.read(_source_path(source)).decode("ascii", "replace")
        except NotFound as error:
            raise unknown from error
        if not is_digest(digest):
            raise DamagedObject(f"what is said of {source} in {self.url} names no image")
        if not self.has(digest):
            raise unknown
        return digest

    def manifest(self, digest: str) -> Manifest:
        return Manifest.from_json(self.manifest_bytes(digest))

    def manifest_bytes(self, digest: str) -> bytes:
        """The manifest as it is stored, checked. Raises NoSuchImage, DamagedObject."""
        try:
            return self._read_verified(_image_path(digest), digest)
        except NotFound as error:
            raise self._unknown(digest) from error

    def index(self, digest: str) -> Index:
        return Index(self.object("indexes", digest))

    def object(self, kind: str, digest: str) -> bytes:
        """An object of one of `KINDS` as it is stored, checked. Raises NotFound, DamagedObject."""
        return self._read_verified(object_path(kind, digest), digest)

    def extents(self, digest: str) -> ExtentTable:
        """An extents table. Raises NotFound, DamagedObject, FormatError."""
        return ExtentTable(self._read_verified(object_path("extents", digest), digest))

    def metadata(self, entry: Metadata) -> bytes:
        """The EROFS image. Raises DamagedObject."""
        packed = self._read_verified(object_path("metadata", entry.object), entry.object)
        if entry.size > _METADATA_LIMIT:
            raise FormatError(f"metadata of {entry.size} bytes is more than this program takes")
        try:
            unpacker = lz4.frame.LZ4FrameDecompressor()
            # One byte more than there should be, and not what a bomb would unpack to.
            data: bytes = unpacker.decompress(packed, max_length=entry.size + 1)
        except (RuntimeError, EOFError) as error:
            raise DamagedObject(f"metadata {entry.object} in {self.url} cannot be unpacked: {error}") from error
        one_frame = unpacker.eof and not unpacker.unused_data
        if not one_frame or len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.digest:
            raise DamagedObject(f"metadata {entry.object} in {self.url} holds other bytes than the image says")
        return data

    def read(self, path: bytes, most: int = 0) -> bytes:
        """All of an object, unchecked. most: in bytes, 0 for any number. Raises StoreErrors, DamagedObject for more."""
        return self._again(lambda: bytes(self.repository.read(path, most)))

    def stat(self, path: bytes) -> Status:
        """Raises StoreErrors."""
        return self._again(lambda: self.repository.stat(path))

    def _read_verified(self, path: bytes, digest: str) -> bytes:
        if self._copies is not None and (copy := self._copies(path, digest)) is not None:
            return copy
        data = self.read(path)
        if hashlib.sha256(data).hexdigest() != digest:
            raise DamagedObject(f"{path.decode()} in {self.url} holds other bytes than its name says")
        return data

    def _names(self, folder: bytes) -> Iterator[tuple[str, Status]]:
        try:
            found = self._again(lambda: self.repository.entries(folder))
        except NotFound:
            return  # nothing was stored yet
        yield from ((status.name.decode("utf-8", "replace"), status) for status in found)

    def _beginning_with(self, prefix: str) -> list[str]:
        try:
            return [digest for digest in self.images() if digest.startswith(prefix)]
        except StoreError:
            return []  # a store that cannot list

    def _unknown(self, name: str) -> NoSuchImage:
        return NoSuchImage(f"{self.url} has no image {name!r}", hint="see `imagefs ls`")

    def _mend(self, path: bytes, data: bytes, digest: str) -> None:
        """Replace what is there already, if it is damaged."""
        try:
            self._read_verified(path, digest)
        except DamagedObject:
            self._again(lambda: self.repository.put(path, data, replace=True))

    def _put(self, path: bytes, data: bytes) -> bool:
        """Looks first: some stores learn that an object exists only when they have all of it."""
        try:
            found = self.stat(path)
        except NotFound:
            pass
        else:
            if found.length == len(data) and self._is_fresh(found):
                return False
            # One of another length is damaged, an old one may be on its way out.
            self._again(lambda: self.repository.put(path, data, replace=True))
            return True
        try:
            self._again(lambda: self.repository.put(path, data))
        except Exists:
            return False  # the same bytes: its name is their digest
        return True

    def _is_fresh(self, found: Status) -> bool:
        """Tells whether no `gc` removes it soon: by the store's clock, as `gc` goes by that."""
        try:
            return self.repository.now_ns() - found.mtime_ns < GRACE / 2 * 1e9
        except StoreError:
            return False

    def _again(self, call: Callable[[], _T]) -> _T:
        return retry(call, self._retries)


def object_path(kind: str, digest: str) -> bytes:
    """The path of an object of one of `KINDS`."""
    return f"/{kind}/{digest[:2]}/{digest}".encode()


def _image_path(digest: str) -> bytes:
    return f"/images/{digest}".encode()


def _tag_path(tag: str) -> bytes:
    if not TAG.fullmatch(tag):
        raise NoSuchImage(f"{tag!r} is no tag", hint="letters, digits, '.', '_' and '-', at most 128")
    return f"/tags/{tag}".encode()


def _source_path(source: str) -> bytes:
    if not is_source(source):
        raise NoSuchImage(f"{source!r} is no digest of an OCI manifest", hint="write sha256: and 64 digits")
    return f"/sources/{source.removeprefix('sha256:')}".encode()
