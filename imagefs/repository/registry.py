"""A repository of a container registry as a place for images: `oci://HOST/NAME[?PARAMETERS]`.

Objects are blobs under the digests that they have anyway. Images, tags and documents are artifacts as
`imagefs.repository.artifact` describes them, found by tags that follow from their paths. A tag of a container image
stands for the newest image that was built from it, if there is one.

A registry has no atomic put-if-absent, no locks and no list of blobs; it removes blobs that no manifest names itself.
Times are those of the hosts that stored things. An object that is replaced is removed where the registry allows that,
else it stays until the registry's own gc.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from imagefs.errors import DamagedObject
from imagefs.format import is_digest
from imagefs.format.documents import Manifest
from imagefs.format.index import Index
from imagefs.reference import Platform
from imagefs.repository import artifact as form
from imagefs.repository.artifact import DOCUMENT_KINDS, IMAGE, Artifact, Descriptor
from imagefs.repository.base import Capabilities, Repository
from imagefs.repository.images import KINDS
from imagefs.repository.registry_client import DOCUMENT_LIMIT, RegistryClient
from imagefs.repository.registry_credentials import FoundCredentials
from imagefs.repository.registry_objects import BLOB_LIMIT, BlobReader, Manifests, Referrers, digest_of
from stripefs.errors import Exists, NotFound, StoreError, Unsupported
from stripefs.store.base import Buffer, Kind, Status

__all__ = ["RegistryRepository"]

_T = TypeVar("_T")
_U = TypeVar("_U")
_DOCUMENT_MOST = 256 << 20
_AT_ONCE = 16
_EMPTY = b"{}"


class RegistryRepository(Repository):
    """The repository of `client` in a registry; closing it closes the client. brief: images of container images are
    looked for as `imagefs.repository.registry_objects` has it."""

    capabilities = Capabilities(put_if_absent=False, list_objects=False)

    def __init__(self, url: str, client: RegistryClient, *, brief: bool = False) -> None:
        self.url = url
        self._client = client
        self._manifests = Manifests(url, client)
        self._referrers = Referrers(self._manifests, brief=brief)
        self._referred: dict[str, str] = {}  # manifest by image, of images that may have no tag of ours

    # -- the seam ------------------------------------------------------------------------------------------------

    def read(self, path: bytes, most: int = 0) -> Buffer:
        kind, name = _parts(path)
        if kind in KINDS:
            return self._manifests.blob(f"sha256:{name}", most or BLOB_LIMIT)
        if kind == "images":
            self._image(name)
            return self._manifests.blob(f"sha256:{name}", DOCUMENT_LIMIT)
        if kind == "tags":
            return self._tagged(name).encode()
        if kind == "sources":
            return self._built_from(f"sha256:{name}").encode()
        layer = self._document(path).layers[0]
        if most and layer.size > most:
            raise DamagedObject(f"{path.decode()} in {self.url} has {layer.size} bytes")
        if layer.media_type == form.EMPTY:
            return b""
        return self._manifests.blob(layer.digest, min(layer.size, _DOCUMENT_MOST))

    def stat(self, path: bytes) -> Status:
        kind, name = _parts(path)
        if kind in KINDS:  # one that is there is not on its way out
            return Status(name.encode(), Kind.FILE, self._client.length(f"sha256:{name}"), self.now_ns())
        if kind in ("tags", "sources"):
            return Status(name.encode(), Kind.FILE, len(self.read(path)), self.now_ns())
        return _status(name, self._image(name)[0] if kind == "images" else self._document(path))

    def put(self, path: bytes, data: bytes, *, replace: bool = False) -> None:
        kind, name = _parts(path)
        if kind in KINDS:
            self._client.upload(f"sha256:{name}", data)
        elif kind == "images":
            self._client.upload(f"sha256:{name}", data)
            self._put_image(name, data)
        elif kind == "tags":
            self._put_tag(name, data.decode())
        elif kind == "sources":
            self._put_source(f"sha256:{name}", data.decode())
        else:
            self._put_document(path, data, replace)

    def entries(self, folder: bytes) -> list[Status]:
        kind = folder.decode().strip("/").partition("/")[0]
        if kind in KINDS:
            raise Unsupported(f"{self.url} does not list its blobs")
        tags = list(self._manifests.tags())
        if kind == "tags":
            return [Status(tag.encode(), Kind.FILE) for tag in tags if not form.is_reserved(tag)]
        if kind == "images":
            return [_status(one.image, one) for one in self._images(tags)]
        beginning = form.document_tag(folder.decode()) + "."
        found = _at_once(self._manifests.artifact, [tag for tag in tags if tag.startswith(beginning)])
        named = form.children(folder.decode(), [one[0] for one in found if one])
        return [_status(name, one) if one else Status(name.encode(), Kind.DIRECTORY) for name, one in named.items()]

    def remove(self, path: bytes) -> None:
        kind, name = _parts(path)
        if kind == "sources":
            raise NotFound(f"what {self.url} says of container images goes with the images that were built from them")
        if kind in KINDS:
            self._manifests.delete(f"/blobs/sha256:{name}")
            return
        if kind == "images":
            found, digest = self._image(name)
            self._manifests.delete(f"/manifests/{digest}")
            if found.subject is not None:
                self._referrers.leave(found.subject.digest, name)
            return
        there = self._manifests.artifact(name if kind == "tags" else form.document_tag(path.decode()))
        if there is None:
            raise NotFound(f"{path.decode()} is not in {self.url}")
        if kind != "tags" or there[0].image:  # a container image keeps its tag when what was built from it goes
            self._manifests.delete(f"/manifests/{there[1]}")

    def open(self, path: bytes, length: int) -> BlobReader:
        return BlobReader(self._client, f"sha256:{_parts(path)[1]}")

    def now_ns(self) -> int:
        return time.time_ns()

    def credentials(self) -> FoundCredentials:
        """The credentials that requests are sent with where the registry wants any."""
        return self._client.credentials()

    def check_writing(self) -> float | None:
        """Begin an upload and take it back; the registry's clock in seconds since 1970, None where it tells none.

        Raises StoreErrors.
        """
        return self._client.begin_upload()

    def close(self) -> None:
        self._client.close()

    def link(self, path: bytes, other: Repository) -> bool:
        if not isinstance(other, RegistryRepository) or other._client.host != self._client.host:
            return False
        return self._client.mount(f"sha256:{_parts(path)[1]}", other._client.name)

    def attached(self) -> dict[str, int | None]:
        by_subject: dict[str, list[Artifact]] = {}
        try:
            for one in self._images(list(self._manifests.tags())):
                if one.subject is not None:
                    by_subject.setdefault(one.subject.digest, []).append(one)
        except NotFound:
            return {}  # nothing was stored yet
        found: dict[str, int | None] = {}
        for subject, images in by_subject.items():
            images.sort(key=lambda one: one.created_ns)
            found |= {older.image: newer.created_ns for older, newer in itertools.pairwise(images)}
            found[images[-1].image] = None if self._referrers.subject(subject) else images[-1].created_ns
        return found

    # -- what is found -------------------------------------------------------------------------------------------

    def _images(self, tags: Sequence[str]) -> list[Artifact]:
        """The images among these tags."""
        found = _at_once(self._manifests.artifact, [tag for tag in tags if form.is_image_tag(tag)])
        return [one[0] for one in found if one and one[0].image]

    def _image(self, name: str) -> tuple[Artifact, str]:
        """The artifact of an image and its manifest's digest. Raises NotFound."""
        for reference in (form.image_tag(name), self._referred.get(name, "")):
            found = self._manifests.artifact(reference) if reference else None
            if found is not None and found[0].image == name:
                return found
        raise NotFound(f"the image {name} is not in {self.url}")

    def _document(self, path: bytes) -> Artifact:
        found = self._manifests.artifact(form.document_tag(path.decode()))
        if found is None or found[0].annotations.get(form.PATH) != path.decode() or not found[0].layers:
            raise NotFound(f"{path.decode()} is not in {self.url}")
        return found[0]

    def _tagged(self, tag: str) -> str:
        """The digest of the image that a tag names, or of what was built from the container image that it names."""
        data, _ = self._manifests.load(tag)
        if image := form.parse(data, f"{tag} in {self.url}").image:
            return image
        listed = form.descriptors(data, f"{tag} in {self.url}")
        fitting = [one.digest for one in listed if Platform.current().fits(one.platform)]
        for source in fitting if listed else [digest_of(data)]:
            with contextlib.suppress(NotFound):
                return self._built_from(source)
        raise NotFound(f"nothing was built from the container image {tag} in {self.url}")

    def _built_from(self, source: str) -> str:
        """The digest of the newest image that was built from that OCI manifest. Raises NotFound."""
        for name, manifest in self._referrers.images(source):
            self._referred[name] = manifest
            with contextlib.suppress(NotFound):
                self._image(name)
                return name
        raise NotFound(f"nothing in {self.url} was built from {source}")

    # -- what is stored ------------------------------------------------------------------------------------------

    def _put_image(self, name: str, document: bytes) -> None:
        manifest, there = Manifest.from_json(document), self._manifests.artifact(form.image_tag(name))
        annotations = {form.CREATED: form.created(self.now_ns()), form.IMAGE_DIGEST: name}
        config = Descriptor(IMAGE, f"sha256:{name}", len(document))
        has_source = manifest.source.startswith("sha256:")
        subject = self._referrers.subject(manifest.source) if has_source else None
        artifact = Artifact(IMAGE, config, self._layers(manifest), annotations, subject)
        entry, noted = self._manifests.put(form.image_tag(name), artifact)
        if has_source and not noted:
            self._referrers.enter(manifest.source, entry, name)
        self._forget(there)

    def _layers(self, manifest: Manifest) -> list[Descriptor]:
        """All objects that the image needs. Raises NotFound for a document that is missing, DamagedObject."""
        found = {}
        for kind, name in (("metadata", manifest.metadata.object), ("extents", manifest.extents)):
            if name:
                size = self._client.length(f"sha256:{name}")
                found[name] = Descriptor(form.media_type(kind), f"sha256:{name}", size)
        for device in manifest.devices:
            data = self._manifests.blob(f"sha256:{device.index}")
            found[device.index] = Descriptor(form.media_type("index"), f"sha256:{device.index}", len(data))
            for pack in Index(data).packs:
                name = pack.digest.hex()
                found[name] = Descriptor(form.media_type("pack"), f"sha256:{name}", pack.length)
        return list(found.values())

    def _put_tag(self, tag: str, name: str) -> None:
        if form.is_reserved(tag):
            raise Unsupported(f"{tag} is a tag that registries and imagefs keep for themselves")
        there = self._manifests.artifact(tag)
        if there is not None and not there[0].image:
            with contextlib.suppress(NotFound):
                if self._tagged(tag) == name:
                    return
            raise Unsupported(
                f"{tag} in {self.url} is the tag of another container image", hint="name the lazy image otherwise"
            )
        image = self._image(name)[0]
        annotations = {**image.annotations, form.CREATED: form.created(self.now_ns()), form.REFERENCE: tag}
        self._manifests.put(tag, Artifact(IMAGE, image.config, image.layers, annotations))
        self._forget(there)

    def _put_source(self, source: str, name: str) -> None:
        """Make that image the newest of those that were built from the OCI manifest. Chain ids are not kept: a registry
        knows an image by the manifest that it refers to."""
        image, _ = self._image(name)
        document = self._manifests.blob(f"sha256:{name}", DOCUMENT_LIMIT)
        if Manifest.from_json(document).source != source:
            return
        attached = image.subject is not None or self._referrers.subject(source) is None
        with contextlib.suppress(NotFound):
            if attached and self._built_from(source) == name:
                return
        self._put_image(name, document)

    def _put_document(self, path: bytes, data: bytes, replace: bool) -> None:
        kind, *names = path.decode().strip("/").split("/")
        tag = form.document_tag(path.decode())
        there = self._manifests.artifact(tag)
        if there is not None and not replace:
            raise Exists(f"{path.decode()} is in {self.url} already")
        subject = None
        if kind in ("traces", "plans"):
            with contextlib.suppress(NotFound):
                subject = self._image(names[0])[0].subject
        layer = empty = Descriptor(form.EMPTY, digest_of(_EMPTY), len(_EMPTY))
        self._client.upload(empty.digest, _EMPTY)
        if data:
            layer = Descriptor(form.media_type(kind), digest_of(data), len(data))
            self._client.upload(layer.digest, data)
        annotations = {form.CREATED: form.created(self.now_ns()), form.PATH: path.decode()}
        self._manifests.put(tag, Artifact(form.media_type(kind), empty, [layer], annotations, subject))
        self._forget(there)

    def _forget(self, replaced: tuple[Artifact, str] | None) -> None:
        """Remove a manifest whose tag another has now."""
        if replaced is not None:
            with contextlib.suppress(StoreError):
                self._manifests.delete(f"/manifests/{replaced[1]}")


def _parts(path: bytes) -> tuple[str, str]:
    """The first and the last name of a path. Raises NotFound for one that no repository has."""
    kind, _, rest = path.decode("utf-8", "replace").strip("/").partition("/")
    name = rest.rpartition("/")[2]
    digests = (*KINDS, "images", "sources")
    if not name or (kind in digests and not is_digest(name)) or kind not in (*digests, "tags", *DOCUMENT_KINDS):
        raise NotFound(f"{path!r:.200} is no place for an object")
    return kind, name


def _status(name: str, artifact: Artifact) -> Status:
    size = sum(layer.size for layer in artifact.layers if layer.media_type != form.EMPTY)
    return Status(name.encode(), Kind.FILE, artifact.config.size if artifact.image else size, artifact.created_ns)


def _at_once(call: Callable[[_T], _U], values: Sequence[_T]) -> list[_U]:
    with ThreadPoolExecutor(min(_AT_ONCE, len(values) or 1)) as pool:
        return list(pool.map(call, values))
