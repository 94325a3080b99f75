"""Manifests, tags and whole blobs of a registry: stored, read back with a check, listed and removed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from imagefs.errors import DamagedObject
from imagefs.repository import artifact as form
from imagefs.repository.artifact import INDEXES, MANIFESTS, Artifact, Descriptor
from imagefs.repository.registry_client import DOCUMENT_LIMIT, RegistryClient, receive
from stripefs.errors import NotFound, StoreError, Unsupported

__all__ = ["BLOB_LIMIT", "Manifests", "digest_of"]

BLOB_LIMIT = 4 << 30
"""Bytes of a blob that is read as a whole: the metadata of the largest image takes less."""

_PAGES = 1000
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


class Manifests:
    """Those of the repository of `client`. Calls raise StoreErrors."""

    def __init__(self, url: str, client: RegistryClient) -> None:
        self.url = url
        self.client = client

    def artifact(self, reference: str) -> tuple[Artifact, str] | None:
        """The manifest with that tag or digest, and its digest; None where there is none. Raises DamagedObject."""
        try:
            data, _ = self.load(reference)
        except NotFound:
            return None
        return form.parse(data, f"{reference} in {self.url}"), digest_of(data)

    def load(self, reference: str, accept: str = "") -> tuple[bytes, str]:
        """The manifest or index with that tag or digest, and its media type. Raises NotFound, DamagedObject."""
        accept = accept or ", ".join((*MANIFESTS, *INDEXES))
        data, headers = self.client.document(f"/manifests/{quote(reference)}", accept)
        if reference.startswith("sha256:") and digest_of(data) != reference:
            raise DamagedObject(f"{reference} in {self.url} holds other bytes than its digest says")
        return data, headers.get("content-type", "").partition(";")[0]

    def put(self, reference: str, artifact: Artifact) -> tuple[Descriptor, bool]:
        """Store a manifest under that tag; its descriptor, and whether the registry takes note of its subject by
        itself."""
        data = form.to_json(artifact)
        if len(data) > DOCUMENT_LIMIT:
            raise StoreError(f"an image of {len(artifact.layers)} objects is more than a registry's manifest holds")
        noted = self.put_bytes(reference, data, form.MANIFEST)
        return Descriptor(form.MANIFEST, digest_of(data), len(data), artifact.annotations, artifact.kind), noted

    def put_bytes(self, reference: str, data: bytes, media_type: str) -> bool:
        """As `put`; whether the registry takes note of a subject."""
        headers = {"Content-Type": media_type}
        with self.client.answer("PUT", f"/manifests/{reference}", headers=headers, content=data) as response:
            return bool(response.headers.get("oci-subject"))

    def delete(self, path: str) -> None:
        """Remove a manifest or blob by the path of its digest. Raises NotFound, Unsupported."""
        try:
            with self.client.answer("DELETE", path):
                pass
        except Unsupported as error:
            raise Unsupported(
                f"{self.url} lets nothing be removed",
                hint="its operator may allow that; docker-registry wants storage.delete.enabled",
            ) from error

    def blob(self, digest: str, most: int = BLOB_LIMIT) -> bytes:
        """All of a blob of at most `most` bytes. Raises DamagedObject for other bytes than its digest says."""
        with self.client.answer("GET", f"/blobs/{digest}") as response:
            data = receive(response, most, f"{digest} in {self.url}")
        if digest_of(data) != digest:
            raise DamagedObject(f"{digest} in {self.url} holds other bytes than its digest says")
        return data

    def tags(self) -> Iterator[str]:
        """All tags. Raises NotFound where the repository is new."""
        for data in self.pages("/tags/list?n=1000", "application/json"):
            yield from form.tags(data, f"the tags of {self.url}")

    def pages(self, path: str, accept: str) -> Iterator[bytes]:
        """A document, and those that its answer says come behind it."""
        for _ in range(_PAGES):
            data, headers = self.client.document(path, accept)
            yield data
            match = _NEXT.search(headers.get("link", ""))
            if match is None:
                return
            parts, base = urlsplit(match[1]), f"/v2/{self.client.name}"
            if not parts.path.startswith(f"{base}/"):
                raise StoreError(f"{self.url} continues a list elsewhere: {match[1]!r:.200}")
            path = parts.path.removeprefix(base) + (f"?{parts.query}" if parts.query else "")
        raise StoreError(f"{self.url} has a list of more than {_PAGES} pages")


def digest_of(data: bytes) -> str:
    """sha256:HEX of these bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
