"""The manifest of an image: which objects it is made of, and what containers of it run.

Canonical JSON (UTF-8, sorted keys, no spaces), named by its SHA-256:

    bootseer   "image", and `version` 1
    source     what it was built from: the digest of an OCI manifest, or ""
    config     the OCI image config
    metadata   digest and size of the EROFS image, and the digest of the object that holds it, compressed by LZ4
    devices    one after the other as the metadata names them: tag, bytes, and the digest of the block index
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from imagefs.errors import FormatError

__all__ = ["DeviceEntry", "Manifest", "Metadata"]

VERSION = 1

_HEX = re.compile(r"[0-9a-f]{64}")


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
    """An image. `config` is the OCI image config, {} for one that was built from a directory."""

    source: str
    config: dict[str, Any]
    metadata: Metadata
    devices: Sequence[DeviceEntry]

    def to_json(self) -> bytes:
        document = {
            "bootseer": "image",
            "version": VERSION,
            "source": self.source,
            "config": self.config,
            "metadata": asdict(self.metadata),
            "devices": [asdict(device) for device in self.devices],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """The inverse of `to_json`. Raises FormatError."""
        try:
            document = json.loads(data)
            if document["bootseer"] != "image":
                raise FormatError("this document is no image")
            if document["version"] != VERSION:
                raise FormatError(f"an image of version {document['version']!r}, which this program does not know")
            manifest = cls(
                str(document["source"]),
                dict(document["config"]),
                Metadata(**document["metadata"]),
                [DeviceEntry(**entry) for entry in document["devices"]],
            )
            digests = [manifest.metadata.digest, manifest.metadata.object, *(one.index for one in manifest.devices)]
            if not all(_HEX.fullmatch(digest) for digest in digests):
                raise FormatError("the image names an object by no digest")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"the image's manifest is damaged: {error}") from error
        return manifest
