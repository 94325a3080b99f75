"""Objects of a registry: manifests with their tags, blobs that are read whole or by ranges, and referrers.

Manifests and whole blobs are stored, read back with a check, listed and removed.

Most registries send the reader of a blob on to where it lies, at an address that holds for some minutes. That address
is kept and asked until it refuses; then the registry is asked again.

Referrers are the images of ours that were built from a container image. Registries of the OCI distribution
specification 1.1 know the referrers of a manifest. Others (Debian's docker-registry among them) have the fallback tag
`sha256-HEX`, an index whose lines clients enter. Entering one takes three requests and may lose what another enters at
the same moment, so it is looked for afterwards, and only images are entered. The fallback tag also has the images whose
container image lies in another repository, whatever the registry knows. Lookups for images that are pulled (`brief`)
have to be cheap where nothing is found: one request to a registry that knows referrers, one to any other once this
process has found out that it is such a one.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote, urlsplit

import httpx

from imagefs.errors import DamagedObject
from imagefs.format import is_digest
from imagefs.repository import artifact as form
from imagefs.repository.artifact import (
    CREATED,
    IMAGE,
    IMAGE_DIGEST,
    INDEXES,
    MANIFESTS,
    OCI_INDEX,
    Artifact,
    Descriptor,
)
from imagefs.repository.registry_client import DOCUMENT_LIMIT, RegistryClient, receive
from stripefs.errors import HostFailed, NotFound, PermissionDenied, ServiceDown, StoreError, Unsupported
from stripefs.store.allocator import uninitialised
from stripefs.store.base import Buffer

__all__ = ["BLOB_LIMIT", "BlobReader", "Manifests", "Referrers", "digest_of"]

BLOB_LIMIT = 4 << 30
"""Bytes of a blob that is read as a whole: the metadata of the largest image takes less."""

_PAGES = 1000
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


class Manifests:
    """The manifests of the repository of `client`. Calls raise StoreErrors."""

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


_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")


class BlobReader:
    """The blob with this digest, for many threads. It is looked for when it is first read."""

    def __init__(self, client: RegistryClient, digest: str) -> None:
        self._client = client
        self._digest = digest
        self._place = ""

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`, unchecked. Raises StoreErrors; Transient ones are worth another try."""
        if place := self._place:
            try:
                return self._read(place, offset, length)
            except (NotFound, PermissionDenied, HostFailed):
                self._place = ""
        return self._read(f"/blobs/{self._digest}", offset, length)

    def close(self) -> None:
        """There is nothing to release: connections are the client's."""

    def _read(self, place: str, offset: int, length: int) -> Buffer:
        if not length:
            return b""
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        with self._client.answer("GET", place, headers=headers) as response:
            self._check(response, offset, length)
            if self._client.is_elsewhere(response):
                self._place = str(response.url)
            buffer, received = uninitialised(length), 0
            with memoryview(buffer) as view:
                for piece in response.iter_raw():
                    end = received + len(piece)
                    if end > length:
                        raise HostFailed(f"{self._digest}: {response.url.host} answered more than was asked for")
                    view[received:end] = piece
                    received = end
            if received != length:
                raise HostFailed(f"{self._digest}: {response.url.host} answered {received} bytes of {length}")
            return buffer

    def _check(self, response: httpx.Response, offset: int, length: int) -> None:
        """Raise unless the body will be these bytes."""
        if response.status_code != 206:
            if offset == 0 and response.headers.get("content-length") == str(length):
                return
            raise Unsupported(
                f"{response.url.host} answered all of {self._digest} where a part was asked for",
                hint="a registry must serve ranges of blobs",
            )
        match = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or (int(match[1]), int(match[2])) != (offset, offset + length - 1):
            raise HostFailed(f"{self._digest}: {response.url.host} answered another range than was asked for")


_TRIES = 6
_PAUSE = 0.2  # seconds at most between two tries
_BELIEVED = 600.0
"""Seconds for which brief lookups believe that a registry does not know referrers: it may have meant the repository."""

_lacking: dict[str, float] = {}  # until when that is believed, by host


class Referrers:
    """The referrers in the repository of `manifests`. Calls raise StoreErrors."""

    def __init__(self, manifests: Manifests, *, brief: bool = False) -> None:
        self._manifests = manifests
        self._brief = brief
        believed = _lacking.get(manifests.client.host, 0.0) if brief else 0.0
        self._asks = time.monotonic() >= believed  # until the registry turns out not to know referrers

    def images(self, source: str) -> Iterator[tuple[str, str]]:
        """Digest and manifest (sha256:HEX) of the images that were built from an OCI manifest, the newest first."""
        for one in sorted(self._all(source), key=lambda one: one.annotations.get(CREATED, ""), reverse=True):
            name = one.annotations.get(IMAGE_DIGEST, "")
            if one.artifact_type in ("", IMAGE) and is_digest(name):
                yield name, one.digest

    def subject(self, source: str) -> Descriptor | None:
        """The OCI manifest with that digest, None where it is not in this repository."""
        try:
            data, kind = self._manifests.load(source)
        except NotFound:
            return None
        return Descriptor(kind or form.MANIFEST, source, len(data))

    def enter(self, source: str, entry: Descriptor, name: str) -> None:
        """Let the fallback tag say that the image `name` with the manifest `entry` was built from the OCI manifest."""
        self._change(source, lambda found: [*_without(found, name), entry])

    def leave(self, source: str, name: str) -> None:
        """Let nothing say any more that this image was built from the OCI manifest."""
        for one in self._all(source):
            if one.annotations.get(IMAGE_DIGEST) == name:
                with contextlib.suppress(NotFound):
                    self._manifests.delete(f"/manifests/{one.digest}")
        self._change(source, lambda found: _without(found, name))

    def _all(self, source: str) -> list[Descriptor]:
        found: list[Descriptor] = []
        if self._asks:
            try:
                for data in self._manifests.pages(f"/referrers/{source}?artifactType={quote(IMAGE)}", OCI_INDEX):
                    found += form.descriptors(data, f"the referrers of {source}")
            except (NotFound, Unsupported, DamagedObject):
                self._asks = False
                if self._brief:
                    _lacking[self._manifests.client.host] = time.monotonic() + _BELIEVED
        found = [one for one in found if IMAGE_DIGEST in one.annotations]
        return found if found or (self._brief and self._asks) else self._entered(source)

    def _entered(self, source: str) -> list[Descriptor]:
        """The lines of the fallback tag."""
        try:
            data, _ = self._manifests.load(source.replace(":", "-"), OCI_INDEX)
        except NotFound:
            return []
        return form.descriptors(data, f"the referrers of {source}")

    def _change(self, source: str, change: Callable[[Sequence[Descriptor]], list[Descriptor]]) -> None:
        """Change the fallback tag until it says what was wanted: others may change it too."""
        for turn in range(_TRIES):
            before = self._entered(source)
            wanted = change(before)
            if {one.digest for one in wanted} == {one.digest for one in before}:
                return
            time.sleep(random.uniform(0, _PAUSE) if turn else 0)  # noqa: S311  no secret
            if wanted:
                self._manifests.put_bytes(source.replace(":", "-"), form.index(wanted), OCI_INDEX)
                continue
            with contextlib.suppress(NotFound):  # by its digest, so that what another has put meanwhile stays
                there = self._manifests.load(source.replace(":", "-"), OCI_INDEX)[0]
                if form.descriptors(there, f"the referrers of {source}") == before:
                    self._manifests.delete(f"/manifests/{digest_of(there)}")
        raise ServiceDown(f"{self._manifests.url}: others change what was built from {source} all the time")


def _without(found: Sequence[Descriptor], name: str) -> list[Descriptor]:
    return [one for one in found if one.annotations.get(IMAGE_DIGEST) != name]
