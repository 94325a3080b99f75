"""Copies an image from one repository to another, with its traces and plans; what the target has already is not sent.

Packs go first, each checked against its digest on the way, then the documents, then the manifest, and the tag last. A
copy that ends early therefore leaves objects that no manifest names: no reader finds them, the next copy goes on from
them, and `gc` removes them if there is none. The image that an optimised one was made from goes along, because traces
belong to it and the next optimisation starts from it. Packs are copied by several threads, each with one in memory.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from imagefs.build.image import publish
from imagefs.build.packs import KnownBlocks
from imagefs.errors import DamagedObject, FormatError, NoSuchImage
from imagefs.format.documents import Manifest
from imagefs.format.index import Index, Pack
from imagefs.progress import Progress
from imagefs.repository.images import Images, object_path
from imagefs.repository.traces import KEEP, Traces
from stripefs.errors import NotFound, Unsupported

__all__ = ["Copied", "copy_image"]

_log = logging.getLogger(__name__)

_AT_ONCE = 4
"""Packs in memory at once, of tens of MiB each."""


@dataclass(slots=True)
class Copied:
    """The result of a copy. digest: of the image; tag: that names it in the target, "" for none.

    objects, bytes: packs, indexes, metadata and extents tables that were sent. linked: those that the registry took
    from another of its repositories. present: those that the target had. traces, plans: how many were stored.
    """

    digest: str
    tag: str = ""
    objects: int = 0
    bytes: int = 0
    linked: int = 0
    present: int = 0
    traces: int = 0
    plans: int = 0


def copy_image(source: Images, target: Images, name: str, *, tag: str = "", progress: Progress | None = None) -> Copied:
    """Copy the image that a tag or digest names in `source`, and let `tag` name it in `target`; "" for the tag that
    names it in `source`.

    Raises NoSuchImage, DamagedObject for what the source lacks or has other bytes of, FormatError, BuildError where
    an image of the target was removed meanwhile whose packs this one shares, Unsupported for a target that cannot be
    written to, and StoreErrors.
    """
    if not target.repository.capabilities.put:
        raise Unsupported(f"{target.url} cannot be written to", hint="copy it where it lies, or into another store")
    digest = source.resolve(name)
    found = Copied(digest, tag or ("" if digest.startswith(name) else name))
    return _ImageCopy(source, target, found, progress or Progress()).run()


class _ImageCopy:
    def __init__(self, source: Images, target: Images, found: Copied, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._found = found
        self._progress = progress
        self._known = KnownBlocks(target, found.tag)

    def run(self) -> Copied:
        self._progress.stage("looking")
        digest = self._found.digest
        image = self._manifest(digest)
        base = None
        if image.base:
            with suppress(NoSuchImage):  # it was removed from the source
                base = self._manifest(image.base)
        manifests = [base, image] if base is not None else [image]
        indexes = {one.index: self._object("indexes", one.index) for each in manifests for one in each.devices}
        packs = {pack: None for data in indexes.values() for pack in Index(data).packs}
        self._progress.stage("copying", sum(pack.length for pack in packs))
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            for sent in pool.map(self._copy_pack, packs):
                self._note(sent)
        finally:
            pool.shutdown(cancel_futures=True)
        self._progress.stage("publishing")
        for kind, name in dict.fromkeys(_documents(manifests)):
            self._copy_document(kind, name, indexes.get(name))
        if base is not None and not self._target.has(image.base):
            publish(base, self._target, self._known)
        publish(image, self._target, self._known, self._found.tag)
        if self._source.repository.capabilities.list:  # one that cannot be listed tells of no traces
            self._copy_traces(image.base or digest)
            self._copy_plans({digest, image.base} - {""})
        return self._found

    def _manifest(self, digest: str) -> Manifest:
        manifest = self._source.manifest(digest)
        if hashlib.sha256(manifest.to_json()).hexdigest() != digest:
            raise FormatError(f"the manifest of the image {digest[:12]} in {self._source.url} is not canonical")
        return manifest

    def _object(self, kind: str, digest: str) -> bytes:
        try:
            return self._source.object(kind, digest)
        except NotFound as error:
            raise DamagedObject(
                f"{self._source.url} lacks {kind}/{digest}, which the image {self._found.digest[:12]} needs",
                hint="see `imagefs verify`; building the image again stores what is missing",
            ) from error

    def _copy_pack(self, pack: Pack) -> int | None:
        """Bytes that were sent, 0 for a pack that was linked, None for one that is there. Runs in threads."""
        name, sent = pack.digest.hex(), None
        if not self._known.holds(pack) and not self._target.keeps("packs", name, pack.length):
            sent = 0
            if not self._target.repository.link(object_path("packs", name), self._source.repository):
                self._target.put_pack(pack, self._object("packs", name))
                sent = pack.length
        self._progress.advance(pack.length)
        return sent

    def _copy_document(self, kind: str, name: str, data: bytes | None) -> None:
        if self._target.keeps(kind, name):
            self._note(None)
        elif self._target.repository.link(object_path(kind, name), self._source.repository):
            self._note(0)
        else:
            data = data or self._object(kind, name)
            self._target.put_object(kind, data)
            self._note(len(data))

    def _note(self, sent: int | None) -> None:
        if sent is None:
            self._found.present += 1
        elif sent == 0:
            self._found.linked += 1
        else:
            self._found.objects += 1
            self._found.bytes += sent

    def _copy_traces(self, base: str) -> None:
        """Copy the traces that writers keep: the newest."""
        here, there = Traces(self._source.repository), Traces(self._target.repository)
        for workload in here.workloads(base):
            stored = set(there.names(base, workload))
            for name in here.names(base, workload)[-KEEP:]:
                if name in stored:
                    continue
                try:
                    there.put(here.load(base, workload, name))
                    self._found.traces += 1
                except (DamagedObject, FormatError, NotFound) as error:  # readers leave it out as well
                    _log.warning("a trace is not copied: %s", error)

    def _copy_plans(self, images: set[str]) -> None:
        here, there = Traces(self._source.repository), Traces(self._target.repository)
        for image, workload in here.plans():
            if image in images and (plan := here.plan(image, workload)) is not None:
                stored = there.plan(image, workload)
                if stored is None or stored.traces < plan.traces:
                    there.put_plan(plan)
                    self._found.plans += 1


def _documents(manifests: list[Manifest]) -> Iterator[tuple[str, str]]:
    """Kind and digest of what the manifests name beside packs."""
    for manifest in manifests:
        yield from (("indexes", device.index) for device in manifest.devices)
        yield "metadata", manifest.metadata.object
        if manifest.extents:
            yield "extents", manifest.extents
