"""OCI image layouts on disk: index, manifest, config and layers, each checked against the digest that names it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from imagefs.build.limits import Limits
from imagefs.errors import BuildError, HostileLayer

__all__ = ["Descriptor", "Layout", "Source", "unpack"]

_STEP = 1 << 20
_DOCUMENT_LIMIT = 4 << 20  # what registries accept for a manifest
_RATIO_FROM = 1 << 30
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob by its digest, with its size in bytes."""

    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """An image: its config as it stands, and its layers, the lowest first, with the digests of their contents."""

    digest: str
    config: bytes
    layers: Sequence[tuple[Descriptor, str]]


class Layout:
    """An image layout in a directory. Raises BuildError for everything that is not as the specification says."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            version = json.loads((self._path / "oci-layout").read_bytes())["imageLayoutVersion"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BuildError(f"{path} is no OCI image layout: {error}") from error
        if version != "1.0.0":
            raise BuildError(f"{path}: image layouts of version {version} are not known")

    def image(self, reference: str = "", architecture: str = "amd64") -> Source:
        """The image with that name, or the only one there is."""
        index = self._parse((self._path / "index.json").read_bytes(), "index.json")
        found = self._choose(index, reference)
        for _ in range(4):  # an index may hold indexes, but not for ever
            document = self._document(found)
            kind = document.get("mediaType", found.media_type)
            if kind in _MANIFESTS:
                return self._source(found, document)
            if kind not in _INDEXES:
                break
            found = self._platform(document, architecture, found.digest)
        raise BuildError(f"{found.digest} is neither an image nor an index of images: {found.media_type}")

    def blob(self, descriptor: Descriptor) -> BinaryIO:
        path = self._path / "blobs" / descriptor.digest.replace(":", "/")
        try:
            file = path.open("rb")
        except OSError as error:
            raise BuildError(f"{descriptor.digest} is missing in {self._path}: {error.strerror}") from error
        if os.fstat(file.fileno()).st_size != descriptor.size:
            file.close()
            raise BuildError(f"{descriptor.digest} has another size than its descriptor says")
        return file

    def _choose(self, index: Any, reference: str) -> Descriptor:
        manifests = _list(index, "manifests", "index.json")
        names = [str((entry.get("annotations") or {}).get(_REFERENCE, "")) for entry in manifests]
        if reference:
            named = zip(manifests, names, strict=True)
            chosen = [entry for entry, name in named if reference in (name, entry.get("digest"))]
        else:
            chosen = manifests
        if len(chosen) == 1:
            return _descriptor(chosen[0])
        there = ", ".join(sorted(filter(None, names))) or "no names"
        what = f"no image {reference!r}" if reference else f"{len(manifests)} images, one must be named"
        raise BuildError(f"{self._path} has {what} ({there})")

    def _platform(self, index: Any, architecture: str, digest: str) -> Descriptor:
        fitting = [
            entry
            for entry in _list(index, "manifests", digest)
            if (entry.get("platform") or {}).get("architecture", architecture) == architecture
            and (entry.get("platform") or {}).get("os", "linux") == "linux"
        ]
        if not fitting:
            raise BuildError(f"{digest} has no image for linux/{architecture}")
        return _descriptor(fitting[0])

    def _source(self, found: Descriptor, manifest: Any) -> Source:
        config = self._bytes(_descriptor(manifest.get("config")))
        rootfs = self._parse(config, "the image's config").get("rootfs") or {}
        layers = [_descriptor(entry) for entry in _list(manifest, "layers", found.digest)]
        contents = rootfs.get("diff_ids")
        if not isinstance(contents, list) or len(contents) != len(layers):
            raise BuildError(f"{found.digest} has {len(layers)} layers and a config that knows another number")
        return Source(found.digest, config, list(zip(layers, map(_digest, contents), strict=True)))

    def _document(self, descriptor: Descriptor) -> Any:
        return self._parse(self._bytes(descriptor), descriptor.digest)

    def _bytes(self, descriptor: Descriptor) -> bytes:
        if descriptor.size > _DOCUMENT_LIMIT:
            raise HostileLayer(f"{descriptor.digest}: a document of {descriptor.size} bytes")
        with self.blob(descriptor) as file:
            data = file.read()
        if "sha256:" + hashlib.sha256(data).hexdigest() != descriptor.digest:
            raise BuildError(f"{descriptor.digest} holds other bytes than its digest says")
        return data

    def _parse(self, data: bytes, where: str) -> Any:
        try:
            document = json.loads(data)
        except ValueError as error:
            raise BuildError(f"{where} is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise BuildError(f"{where} is no JSON object")
        return document


def unpack(
    layout: Layout,
    layer: tuple[Descriptor, str],
    target: Path,
    limits: Limits,
    progress: Callable[[int], None] = lambda _packed: None,
) -> None:
    """Write the layer's archive, uncompressed, to `target`; both of its digests are checked.

    Raises HostileLayer for a wrong digest and for one that unpacks to more than `limits` allow.
    """
    descriptor, content = layer
    packed, plain, size = hashlib.sha256(), hashlib.sha256(), 0

    def read() -> Iterator[bytes]:
        with layout.blob(descriptor) as file:
            while data := file.read(_STEP):
                packed.update(data)
                progress(len(data))
                yield data

    with target.open("wb") as out:
        for data in _decompress(descriptor.media_type, read()):
            size += len(data)
            if size > limits.layer_bytes or (size > _RATIO_FROM and size > limits.ratio * descriptor.size):
                raise HostileLayer(
                    f"layer {descriptor.digest} of {descriptor.size} bytes unpacks to more than {size} bytes",
                    hint="--max-layer-size and --max-ratio allow more",
                )
            plain.update(data)
            out.write(data)
    if "sha256:" + packed.hexdigest() != descriptor.digest:
        raise HostileLayer(f"layer {descriptor.digest} holds other bytes than its digest says")
    if "sha256:" + plain.hexdigest() != content:
        raise HostileLayer(f"layer {descriptor.digest} unpacks to other bytes than the config says ({content})")


def _decompress(media_type: str, data: Iterator[bytes]) -> Iterator[bytes]:
    """By what the first bytes are, as media types are often wrong; in pieces of bounded size."""
    first = next(data, b"")
    rest = _chain(first, data)
    if first.startswith(b"\x1f\x8b"):
        return _gunzip(rest)
    skippable = first[1:4] == b"\x2a\x4d\x18" and first[0] & 0xF0 == 0x50  # a frame that says nothing may come first
    if skippable or first.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd(rest)
    if media_type.endswith(("gzip", "zstd")):
        raise BuildError(f"a layer of type {media_type} is not compressed that way")
    return rest


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _gunzip(data: Iterator[bytes]) -> Iterator[bytes]:
    """All members of a gzip file, as pigz and eStargz write several."""
    engine = zlib.decompressobj(wbits=31)
    try:
        for piece in data:
            while piece:
                yield engine.decompress(piece, _STEP)
                piece = engine.unconsumed_tail
                if engine.eof:
                    piece = engine.unused_data
                    engine = zlib.decompressobj(wbits=31)
        yield engine.flush()
    except zlib.error as error:
        raise BuildError(f"a layer cannot be unpacked: {error}") from error


def _unzstd(data: Iterator[bytes]) -> Iterator[bytes]:
    """All frames of a zstd file."""
    engine = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    try:
        with engine.stream_reader(_Pull(data), read_across_frames=True) as reader:  # type: ignore[arg-type]  # all it calls is read
            while piece := reader.read(_STEP):
                yield piece
    except zstandard.ZstdError as error:
        raise BuildError(f"a layer cannot be unpacked: {error}") from error


class _Pull:
    """An iterator's pieces by `read`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, _size: int = -1) -> bytes:
        return next(self._pieces, b"")


def _descriptor(entry: Any) -> Descriptor:
    try:
        size = entry["size"]
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"a size of {size!r}")
        return Descriptor(str(entry.get("mediaType", "")), _digest(entry["digest"]), size)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BuildError(f"a descriptor is damaged: {error}") from error


def _digest(text: object) -> str:
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise BuildError(f"{text!r} is no SHA-256 digest")
    return text


def _list(document: Any, key: str, where: str) -> list[Any]:
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise BuildError(f"{where} has no list of {key}")
    return found
