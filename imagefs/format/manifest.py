"""The manifest of an image: which objects it is made of, and what containers of it run.

Canonical JSON (UTF-8, sorted keys, no spaces), named by its SHA-256:

    bootseer   "image", and `version` 1
    source     what it was built from: the digest of an OCI manifest, or ""
    config     the OCI image config
    metadata   digest and size of the EROFS image, and the digest of the object that holds it, compressed by LZ4
    devices    one after the other as the metadata names them: tag, bytes, and the digest of the block index
    base       the manifest this image was optimised from, "" for one that was built
    extents    the digest of the table of its cold device's extents, "" when it has none
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from imagefs.errors import FormatError, UnknownVersion
from imagefs.format import first_line, is_digest, is_source

__all__ = ["DeviceEntry", "Manifest", "Metadata", "chain_id"]

VERSION = 1

_SIZE_LIMIT = 1 << 44  # 32 bits of blocks of 4 KiB


@dataclass(frozen=True, slots=True)
class Metadata:
    """The EROFS image: SHA-256 and bytes of it as it is, and the SHA-256 of the object that holds it."""

    digest: str
    size: int
    object: str


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device: its tag in the metadata, its length in bytes, and the digest of its block index."""

    tag: str
    size: int
    index: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """An image. `config` is the OCI image config, {} for one that was built from a directory.

    `base` is the digest of the manifest of the same image without a hot device, "" when it is that itself; `extents`
    that of its extents table (`imagefs.format.extents`).
    """

    source: str
    config: dict[str, Any]
    metadata: Metadata
    devices: Sequence[DeviceEntry]
    base: str = ""
    extents: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        """OCI digests that stand for the image: of the manifest that it was built from, and the chain id of its layers,
        which is that of every image with the same layers."""
        return tuple(filter(is_source, (self.source, chain_id(self.config))))

    def to_json(self) -> bytes:
        """The document. Raises FormatError for a config that is no JSON."""
        document = {
            "bootseer": "image",
            "version": VERSION,
            "source": self.source,
            "config": self.config,
            "metadata": asdict(self.metadata),
            "devices": [asdict(device) for device in self.devices],
            "base": self.base,
            "extents": self.extents,
        }
        try:
            return json.dumps(
                document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
            ).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(f"the image's config has no place in a manifest: {first_line(error)}") from error

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """The inverse of `to_json`. Raises FormatError."""
        try:
            document = json.loads(data)
            if document["bootseer"] != "image":
                raise FormatError("this document is no image")
            if document["version"] != VERSION:
                raise UnknownVersion(f"an image of version {document['version']!r}, which this program does not know")
            manifest = cls(
                document["source"],
                document["config"],
                Metadata(**document["metadata"]),
                [DeviceEntry(**entry) for entry in document["devices"]],
                document["base"],
                document["extents"],
            )
            _check(manifest)
            manifest.to_json()  # what cannot be written again cannot be shown either
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(f"the image's manifest is damaged: {first_line(error)}") from error
        return manifest


def _check(manifest: Manifest) -> None:
    digests = [manifest.metadata.digest, manifest.metadata.object, *(one.index for one in manifest.devices)]
    digests += [digest for digest in (manifest.base, manifest.extents) if digest != ""]
    if not all(is_digest(digest) for digest in digests):
        raise FormatError("the image names an object by no digest")
    if not isinstance(manifest.source, str) or not isinstance(manifest.config, dict):
        raise FormatError("the image does not say what it was built from")
    sizes = [manifest.metadata.size, *(one.size for one in manifest.devices)]
    if not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < _SIZE_LIMIT for size in sizes):
        raise FormatError("the image has a size that is none")
    if not all(isinstance(one.tag, str) and len(one.tag.encode()) < 64 for one in manifest.devices):
        raise FormatError("the image has a device of no name")


def chain_id(config: Mapping[str, Any]) -> str:
    """The OCI chain id of all layers that an OCI image config names; "" where it names none."""
    rootfs = config.get("rootfs")
    layers = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    chain = ""
    for layer in layers if isinstance(layers, list) else []:
        chain = f"sha256:{hashlib.sha256(f'{chain} {layer}'.encode()).hexdigest()}" if chain else str(layer)
    return chain
