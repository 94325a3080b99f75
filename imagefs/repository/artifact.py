"""Images and documents as artifacts of a registry (OCI image specification 1.1): media types, tags, manifests.

An image is an artifact manifest whose config is the image's manifest document, so that the digest of the config is the
digest of the image. Its layers are all objects that the image needs, packs too, so that no registry removes them as
unused. Every other document (a trace, a plan, what belongs to dependency snapshots) is the one layer of an artifact of
its own. Both have as `subject` the OCI manifest that the image was built from, where that is known.

    imagefs-HEX                 tag of the image with the digest HEX
    imagefs.KIND.H[.H[.H]]      tag of the document /KIND/A[/B[/C]]; each H is the beginning of the SHA-256 of one name

Pure: what a registry answers is taken apart here, and nothing of it is believed further than its form.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from imagefs.errors import DamagedObject
from imagefs.format import is_source
from imagefs.reference import TAG

__all__ = [
    "CREATED",
    "DOCUMENT_KINDS",
    "EMPTY",
    "IMAGE",
    "IMAGE_DIGEST",
    "INDEXES",
    "MANIFEST",
    "MANIFESTS",
    "OCI_INDEX",
    "PATH",
    "REFERENCE",
    "Artifact",
    "Descriptor",
    "children",
    "created",
    "descriptor",
    "descriptors",
    "document_tag",
    "image_tag",
    "index",
    "is_image_tag",
    "is_reserved",
    "media_type",
    "parse",
    "tags",
    "to_json",
]

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
MANIFESTS = (MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
INDEXES = (OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
EMPTY = "application/vnd.oci.empty.v1+json"

_PREFIX = "application/vnd.bootseer.imagefs."
IMAGE = f"{_PREFIX}image.v1+json"
PATH = "io.bootseer.imagefs.path"
IMAGE_DIGEST = "io.bootseer.imagefs.image"
CREATED = "org.opencontainers.image.created"
REFERENCE = "org.opencontainers.image.ref.name"

DOCUMENT_KINDS = ("traces", "plans", "deps", "used", "unkept", "locks", "hints")
"""Kinds of documents that are artifacts of their own, by the first name of their paths."""

_HASHED = 24  # hexadecimal digits


class Descriptor(NamedTuple):
    """A blob or manifest: its media type, digest (sha256:HEX), bytes, and what its annotations say."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = {}
    artifact_type: str = ""
    platform: Mapping[str, Any] = {}

    def to_document(self) -> dict[str, Any]:
        found: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            found["artifactType"] = self.artifact_type
        if self.annotations:
            found["annotations"] = dict(self.annotations)
        if self.platform:
            found["platform"] = dict(self.platform)
        return found


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact manifest, ours or any other. kind: its artifact type, or the media type of its config."""

    kind: str
    config: Descriptor
    layers: Sequence[Descriptor]
    annotations: Mapping[str, str]
    subject: Descriptor | None = None

    @property
    def image(self) -> str:
        """The digest of the image that this is, "" where it is none of ours."""
        return self.config.digest.removeprefix("sha256:") if self.kind == IMAGE else ""

    @property
    def created_ns(self) -> int:
        """Time at which it was made, in nanoseconds since 1970; 0 where it does not say."""
        try:
            return int(datetime.fromisoformat(self.annotations.get(CREATED, "")).timestamp() * 1e9)
        except (ValueError, OverflowError):
            return 0


def to_json(artifact: Artifact) -> bytes:
    """The manifest as a registry stores it."""
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": artifact.kind,
        "config": artifact.config.to_document(),
        "layers": [layer.to_document() for layer in artifact.layers],
        "annotations": dict(artifact.annotations),
    }
    if artifact.subject is not None:
        document["subject"] = artifact.subject.to_document()
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def parse(data: bytes, where: str) -> Artifact:
    """A manifest that a registry answered. Raises DamagedObject for what is none."""
    document = _parse(data, where)
    try:
        config = descriptor(document["config"]) if "config" in document else Descriptor("", "sha256:" + "0" * 64, 0)
        subject = document.get("subject")
        return Artifact(
            str(document.get("artifactType") or config.media_type),
            config,
            [descriptor(one) for one in document.get("layers") or []],
            _strings(document.get("annotations")),
            descriptor(subject) if subject else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedObject(f"{where} is no manifest: {error!r:.200}") from error


def descriptors(data: bytes, where: str) -> list[Descriptor]:
    """The manifests of an index; none of another document. Raises DamagedObject."""
    document = _parse(data, where)
    try:
        return [descriptor(one) for one in document.get("manifests") or []]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedObject(f"{where} is no index: {error!r:.200}") from error


def tags(data: bytes, where: str) -> list[str]:
    """The tags that a list of a registry holds. Raises DamagedObject."""
    found = _parse(data, where).get("tags") or []
    if not isinstance(found, list):
        raise DamagedObject(f"{where} are no list")
    return [tag for tag in found if isinstance(tag, str) and TAG.fullmatch(tag)]


def index(found: Sequence[Descriptor]) -> bytes:
    """An index of these manifests."""
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [one.to_document() for one in found]}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def media_type(kind: str) -> str:
    """Of a blob, or a document, of this kind."""
    return f"{_PREFIX}{kind}.v1"


def created(now_ns: int) -> str:
    """A time in nanoseconds since 1970 as annotations have it."""
    return datetime.fromtimestamp(now_ns / 1e9, UTC).isoformat()


def image_tag(digest: str) -> str:
    return f"imagefs-{digest}"


def is_image_tag(tag: str) -> bool:
    return tag.startswith("imagefs-")


def document_tag(path: str) -> str:
    """The tag of the document at `/KIND/A/B`; for a folder the beginning of the tags of what lies below it."""
    kind, *names = path.strip("/").split("/")
    hashed = [hashlib.sha256(name.encode()).hexdigest()[:_HASHED] for name in names]
    return ".".join(["imagefs", kind, *hashed])


def is_reserved(tag: str) -> bool:
    """Tells whether no image of a user can have that tag: it is one of ours, or that of a list of referrers."""
    return tag.startswith(("imagefs-", "imagefs.")) or re.match(r"sha256-[0-9a-f]{64}", tag) is not None


def children(folder: str, artifacts: Sequence[Artifact]) -> dict[str, Artifact | None]:
    """The names right below `folder` by the paths that documents say they have: None for one that is a folder too."""
    found: dict[str, Artifact | None] = {}
    for artifact in artifacts:
        path = artifact.annotations.get(PATH, "")
        if path.startswith(f"{folder}/"):
            name, slash, _ = path[len(folder) + 1 :].partition("/")
            found[name] = None if slash else artifact
    return found


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedObject(f"{where} is no JSON: {error!r:.200}") from error
    if not isinstance(document, dict):
        raise DamagedObject(f"{where} is no JSON object")
    return document


def descriptor(entry: Any) -> Descriptor:
    """From a document. Raises KeyError, TypeError, ValueError and AttributeError for what is none."""
    digest, size = entry["digest"], entry["size"]
    if not isinstance(digest, str) or not is_source(digest):
        raise ValueError(f"a digest {digest!r:.80}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"a size {size!r:.80}")
    platform = entry.get("platform")
    return Descriptor(
        str(entry.get("mediaType", "")),
        digest,
        size,
        _strings(entry.get("annotations")),
        str(entry.get("artifactType") or ""),
        platform if isinstance(platform, dict) else {},
    )


def _strings(found: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
