"""Documents that name images: the manifest of an image, and a dependency snapshot.

The manifest says which objects an image is made of, and what containers of it run. A snapshot says what it was
installed from, and which image holds what came of it; the caches that a job's start filled are a snapshot of their own
kind. Both are canonical JSON, the former in UTF-8 and the latter in ASCII. docs/format.md tells every field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from imagefs.errors import FormatError
from imagefs.format import document, first_line, is_digest, is_source

__all__ = [
    "SHORT",
    "DeviceEntry",
    "Manifest",
    "Metadata",
    "Snapshot",
    "SnapshotKind",
    "canonical",
    "chain_id",
    "key_digest",
]

_SIZE_LIMIT = 1 << 44  # 32 bits of blocks of 4 KiB

SHORT = 12
"""Digits of a key that people are shown."""

SnapshotKind = Literal["host", "container", "cache"]

_LATEST = 1e11
"""Seconds since 1970, in the year 5138: what is later no calendar can tell."""


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
    that of its extents table (`imagefs.format.inodes`).
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
        content = {
            "bootseer": "image",
            "version": 1,
            "source": self.source,
            "config": self.config,
            "metadata": asdict(self.metadata),
            "devices": [asdict(device) for device in self.devices],
            "base": self.base,
            "extents": self.extents,
        }
        try:
            return json.dumps(
                content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
            ).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(f"the image's config has no place in a manifest: {first_line(error)}") from error

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """The inverse of `to_json`. Raises FormatError."""
        with document(data, "image", "manifest of an image") as found:
            manifest = cls(
                found["source"],
                found["config"],
                Metadata(**found["metadata"]),
                [DeviceEntry(**entry) for entry in found["devices"]],
                found["base"],
                found["extents"],
            )
            _check_manifest(manifest)
            manifest.to_json()  # a manifest that cannot be written again cannot be shown either
            return manifest


def _check_manifest(manifest: Manifest) -> None:
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


def canonical(value: Any) -> bytes:
    """A JSON value as canonical JSON. Raises FormatError for what is none."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"a key of a snapshot is no JSON: {first_line(error)}") from error


def key_digest(key: Any) -> str:
    """The name of the snapshot with this key."""
    return hashlib.sha256(canonical(key)).hexdigest()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dependency snapshot. made_at in seconds since 1970, made_seconds as long as the installation took."""

    key: Any
    image: str
    kind: SnapshotKind
    targets: tuple[str, ...]
    made_at: float
    made_seconds: float
    findings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name under which the snapshot is stored."""
        return key_digest(self.key)

    def to_json(self) -> bytes:
        """The document. Raises FormatError for a key that is no JSON."""
        content = {
            "bootseer": "deps",
            "version": 1,
            "key": self.key,
            "image": self.image,
            "kind": self.kind,
            "targets": list(self.targets),
            "made": {"at": self.made_at, "seconds": self.made_seconds},
            "findings": list(self.findings),
        }
        return canonical(content)

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Snapshot:
        """The inverse of `to_json` for the document under `name`. Raises FormatError."""
        with document(data, "deps", f"dependency snapshot {name[:SHORT]}") as found:
            made = found["made"]
            snapshot = cls(
                found["key"],
                found["image"],
                found["kind"],
                tuple(found["targets"]),
                made["at"],
                made["seconds"],
                tuple(found["findings"]),
            )
            if snapshot.name != name:
                raise FormatError(f"the snapshot {name[:SHORT]} holds the key of another one")
            _check_snapshot(snapshot)
            return snapshot


def _check_snapshot(snapshot: Snapshot) -> None:
    if not isinstance(snapshot.image, str) or not is_digest(snapshot.image):
        raise FormatError("the snapshot names no image")
    if snapshot.kind not in get_args(SnapshotKind):
        raise FormatError(f"the snapshot is of kind {snapshot.kind!r}, which this program does not know")
    texts = (*snapshot.targets, *snapshot.findings)
    if not all(isinstance(one, str) for one in texts) or not all(one.startswith("/") for one in snapshot.targets):
        raise FormatError("the snapshot has a target that is no absolute path")
    if not snapshot.targets or (snapshot.kind != "container" and len(snapshot.targets) != 1):
        raise FormatError("the snapshot of a host, or of caches, must have one target")
    times = (snapshot.made_at, snapshot.made_seconds)
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < _LATEST for one in times):
        raise FormatError("the snapshot does not say when it was made")
