"""OCI image layouts on disk: index, manifest, config and layers, each checked against the digest that names it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from imagefs.errors import BuildError, HostileLayer
from imagefs.format import is_source
from imagefs.reference import Platform
from imagefs.repository import artifact
from imagefs.repository.artifact import INDEXES, MANIFESTS, REFERENCE, Descriptor
from imagefs.settings import LayerLimits

__all__ = ["Layout", "LayoutSource", "chosen", "layers_of", "unpack"]

_STEP = 1 << 20
_DOCUMENT_LIMIT = 4 << 20  # the longest manifest that registries accept
_RATIO_FROM = 1 << 30

_ARCHIVE = ("application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.layer.nondistributable.v1.tar")
_LAYERS = frozenset(
    {f"{kind}{how}" for kind in _ARCHIVE for how in ("", "+gzip", "+zstd")}
    | {
        f"application/vnd.docker.image.rootfs.{kind}diff.tar{how}"
        for kind in ("", "foreign.")
        for how in ("", ".gzip", ".zstd")
    }
)


@dataclass(frozen=True, slots=True)
class LayoutSource:
    """An image: its config, and its layers, the lowest first, with the digests of their contents."""

    digest: str
    config: dict[str, Any]
    layers: Sequence[tuple[Descriptor, str]]

    def lowest(self, count: int) -> LayoutSource:
        """The image of so many of its lowest layers, which no manifest describes. Raises BuildError for too many."""
        if not 0 < count <= len(self.layers):
            raise BuildError(f"the image has {len(self.layers)} layers, not {count}")
        if count == len(self.layers):
            return self
        rootfs = {**self.config["rootfs"], "diff_ids": [content for _, content in self.layers[:count]]}
        kept = {key: value for key, value in self.config.items() if key != "history"}
        return LayoutSource("", {**kept, "rootfs": rootfs}, self.layers[:count])


class Layout:
    """An image layout in a directory. Raises BuildError for everything that is not as the specification says."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._packed = self._unpacked = 0  # bytes of the layers so far; several are unpacked at once
        self._lock = threading.Lock()
        version = _parse(self._file("oci-layout"), f"{path}/oci-layout").get("imageLayoutVersion")
        if version != "1.0.0":
            raise BuildError(f"{path}: image layouts of version {version!r:.40} are not known")

    def image(self, reference: str = "", platform: Platform | None = None, variant: str = "") -> LayoutSource:
        """The image with that name or digest, or the only one there is; for that platform where there are several.

        variant: of the processor, where only an index outside the layout names it.
        """
        found, described = self._choose(_parse(self._file("index.json"), "index.json"), reference)
        for _ in range(4):  # an index may hold indexes, but not for ever
            document = _parse(self._bytes(found), found.digest)
            kind = document.get("mediaType", found.media_type)
            if kind in MANIFESTS:
                return self._source(found, document, {"variant": variant, **described})
            if kind not in INDEXES:
                break
            found, described = self._platform(document, platform or Platform.current(), found.digest)
        raise BuildError(f"{found.digest} is neither an image nor an index of images: {found.media_type!r:.80}")

    def blob(self, descriptor: Descriptor) -> BinaryIO:
        file = self._open("blobs/" + descriptor.digest.replace(":", "/"), descriptor.digest)
        if os.fstat(file.fileno()).st_size != descriptor.size:
            file.close()
            raise BuildError(f"{descriptor.digest} has another size than its descriptor says")
        return file

    def begin(self, descriptor: Descriptor) -> None:
        """Take note that this layer is going to be unpacked."""
        with self._lock:
            self._packed += descriptor.size

    def count(self, descriptor: Descriptor, size: int, limits: LayerLimits) -> None:
        """Take note of `size` bytes more that a layer unpacked to. Raises HostileLayer past the limit of all layers."""
        with self._lock:
            self._unpacked += size
        if self._unpacked > _RATIO_FROM and self._unpacked > limits.ratio * self._packed:
            raise HostileLayer(
                f"layer {descriptor.digest} of {descriptor.size} bytes unpacks to {limits.ratio} times as much",
                hint="--max-ratio allows more",
            )

    def _open(self, name: str, shown: str) -> BinaryIO:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # it may be a pipe that nobody writes to
        try:
            descriptor = os.open(self._path / name, flags)
        except OSError as error:
            what = "is missing in" if error.errno == errno.ENOENT else "cannot be read in"
            raise BuildError(f"{shown} {what} {self._path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BuildError(f"{shown} in {self._path} is no file")
        return os.fdopen(descriptor, "rb")

    def _file(self, name: str) -> bytes:
        with self._open(name, name) as file:
            data = file.read(_DOCUMENT_LIMIT + 1)
        if len(data) > _DOCUMENT_LIMIT:
            raise HostileLayer(f"{name} in {self._path} is longer than {_DOCUMENT_LIMIT} bytes")
        return data

    def _choose(self, index: Any, reference: str) -> tuple[Descriptor, dict[str, Any]]:
        """The image of that name, and what the index says of its platform."""
        manifests = _list(index, "manifests", "index.json")
        names = [str(_inside(entry, "annotations").get(REFERENCE, "")) for entry in manifests]
        if reference:
            named = zip(manifests, names, strict=True)
            chosen = [entry for entry, name in named if reference in (name, entry.get("digest"))]
        else:
            chosen = manifests
        if len(chosen) == 1:
            return _descriptor(chosen[0]), _inside(chosen[0], "platform")
        there = ", ".join(sorted(filter(None, names))) or "no names"
        what = f"no image {reference!r}" if reference else f"{len(manifests)} images, one must be named"
        raise BuildError(f"{self._path} has {what} ({there})")

    def _platform(self, index: Any, platform: Platform, digest: str) -> tuple[Descriptor, dict[str, Any]]:
        """The image for it, and what the index says of its platform."""
        entries = _list(index, "manifests", digest)
        fitting = [entry for entry in entries if platform.fits(_inside(entry, "platform"))]
        if not fitting:
            there = ", ".join("/".join(map(str, _inside(entry, "platform").values())) for entry in entries)
            raise BuildError(f"{digest} has no image for {platform} ({there:.200})", hint="--platform names another")
        return _descriptor(fitting[0]), _inside(fitting[0], "platform")

    def _source(self, found: Descriptor, manifest: Any, described: dict[str, Any]) -> LayoutSource:
        config = _parse(self._bytes(_descriptor(manifest.get("config"))), "the image's config")
        if variant := described.get("variant"):  # which many configs leave to the index
            config.setdefault("variant", str(variant))
        rootfs = _inside(config, "rootfs")
        layers = [_descriptor(entry) for entry in _list(manifest, "layers", found.digest)]
        for layer, entry in zip(layers, manifest["layers"], strict=True):
            self._check_layer(layer, entry)
        contents = rootfs.get("diff_ids")
        if not isinstance(contents, list) or len(contents) != len(layers):
            raise BuildError(f"{found.digest} has {len(layers)} layers and a config that knows another number")
        return LayoutSource(found.digest, config, list(zip(layers, map(_digest, contents), strict=True)))

    def _check_layer(self, layer: Descriptor, entry: Any) -> None:
        """Raises BuildError for one that is not to be had here, or that is no archive."""
        if layer.media_type not in _LAYERS:
            raise BuildError(f"layer {layer.digest} is of a type that is not known: {layer.media_type!r:.80}")
        urls = entry.get("urls")
        path = "blobs/" + layer.digest.replace(":", "/")
        if urls and not (self._path / path).exists():
            where = ", ".join(map(str, urls)) if isinstance(urls, list) else str(urls)
            raise BuildError(
                f"layer {layer.digest} is not in the image: it is kept at {where:.400}",
                hint=f"fetch it into an image layout as {path}, and build from oci:LAYOUT",
            )

    def _bytes(self, descriptor: Descriptor) -> bytes:
        if descriptor.size > _DOCUMENT_LIMIT:
            raise HostileLayer(f"{descriptor.digest}: a document of {descriptor.size} bytes")
        with self.blob(descriptor) as file:
            data = file.read()
        if "sha256:" + hashlib.sha256(data).hexdigest() != descriptor.digest:
            raise BuildError(f"{descriptor.digest} holds other bytes than its digest says")
        return data


def chosen(document: Any, platform: Platform) -> tuple[str, str]:
    """Digest and variant of what an index has for that platform, "" where it has none or is no index.

    Raises BuildError.
    """
    entries = _list(document, "manifests", "the index") if "manifests" in document else []
    found = next((entry for entry in entries if platform.fits(_inside(entry, "platform"))), None)
    return (_descriptor(found).digest, str(_inside(found, "platform").get("variant", ""))) if found else ("", "")


def config_of(manifest: Any) -> Descriptor:
    """The image config that a manifest names. Raises BuildError."""
    return _descriptor(manifest.get("config"))


def layers_of(manifest: Any) -> list[Descriptor]:
    """The layers that the manifest's own registry has; none of a manifest of long ago. Raises BuildError."""
    entries = _list(manifest, "layers", "the manifest") if "layers" in manifest else []
    return [_descriptor(entry) for entry in entries if not entry.get("urls")]


def unpack(
    layout: Layout,
    layer: tuple[Descriptor, str],
    target: Path,
    limits: LayerLimits,
    progress: Callable[[int], None] = lambda _packed: None,
) -> None:
    """Write the layer's archive, uncompressed, to `target`; both of its digests are checked.

    Raises HostileLayer for a wrong digest and for one that unpacks to more than `limits` allow, BuildError for one that
    is damaged and for a full disk.
    """
    descriptor, content = layer
    packed, plain, size = hashlib.sha256(), hashlib.sha256(), 0
    layout.begin(descriptor)

    def read() -> Iterator[bytes]:
        with layout.blob(descriptor) as file:
            while data := file.read(_STEP):
                packed.update(data)
                progress(len(data))
                yield data

    try:
        with target.open("wb") as out:
            for data in _decompress(descriptor.media_type, read()):
                size += len(data)
                if size > limits.layer_bytes:
                    raise HostileLayer(
                        f"layer {descriptor.digest} unpacks to more than {limits.layer_bytes} bytes",
                        hint="--max-layer-size allows more",
                    )
                layout.count(descriptor, len(data), limits)
                plain.update(data)
                out.write(data)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise BuildError(
            f"layer {descriptor.digest} cannot be unpacked to {target}: {error.strerror}",
            hint="nothing was published; --tmp names a folder with more space" if full else "",
        ) from error
    if "sha256:" + packed.hexdigest() != descriptor.digest:
        raise HostileLayer(f"layer {descriptor.digest} holds other bytes than its digest says")
    if "sha256:" + plain.hexdigest() != content:
        raise HostileLayer(f"layer {descriptor.digest} unpacks to other bytes than the config says ({content})")


def _decompress(media_type: str, data: Iterator[bytes]) -> Iterator[bytes]:
    """The decompressed data, in pieces of bounded size. Its first bytes decide: the media type is often wrong."""
    first = next(data, b"")
    rest = chain([first], data)
    if first.startswith(b"\x1f\x8b"):  # of several members by pigz and eStargz; one of 16 KiB unpacks to 16 MiB at most
        return _unpacked(rest, lambda: zlib.decompressobj(wbits=31), 16 << 10)
    skippable = first[1:4] == b"\x2a\x4d\x18" and first[0] & 0xF0 == 0x50  # a frame that says nothing may come first
    if skippable or first.startswith(b"\x28\xb5\x2f\xfd"):  # 4 bytes unpack to 128 KiB at most, so 1 KiB to 32 MiB
        return _unpacked(rest, zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj, 1 << 10)
    if media_type.endswith(("gzip", "zstd")):
        raise BuildError(f"a layer of type {media_type} is not compressed that way")
    return rest


def _unpacked(data: Iterator[bytes], new: Callable[[], Any], step: int) -> Iterator[bytes]:
    """All members or frames, one behind the other, fed in steps so small that what one unpacks to fits in memory.

    new: a decompressor of one of them, as zlib and zstandard have it.
    """
    engine = new()
    try:
        for piece in data:
            view = memoryview(piece)
            for at in range(0, len(view), step):
                rest: memoryview | bytes = view[at : at + step]
                while rest:
                    if engine.eof:
                        engine = new()
                    yield engine.decompress(rest)
                    rest = engine.unused_data if engine.eof else b""
    except (zlib.error, zstandard.ZstdError) as error:
        raise BuildError(f"a layer cannot be unpacked: {error}") from error
    if not engine.eof:
        raise BuildError("a layer cannot be unpacked: it ends in its middle")


def _parse(data: bytes, where: str) -> Any:
    try:
        document = json.loads(data)
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()  # it will have to be written again
    except (ValueError, RecursionError) as error:
        raise BuildError(f"{where} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise BuildError(f"{where} is no JSON object")
    return document


def _descriptor(entry: Any) -> Descriptor:
    try:
        return artifact.descriptor(entry)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BuildError(f"a descriptor is damaged: {error}") from error


def _digest(text: object) -> str:
    if not isinstance(text, str) or not is_source(text):
        raise BuildError(f"{text!r:.80} is no SHA-256 digest")
    return text


def _list(document: Any, key: str, where: str) -> list[Any]:
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise BuildError(f"{where} has no list of {key}")
    return found


def _inside(document: Any, key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
