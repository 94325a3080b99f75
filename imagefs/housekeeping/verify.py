"""Verifies a store, or one image of it: reads every byte, says what is not as its name promises, and removes that.

Documents first, as they say what the packs must hold: manifests, block indexes, metadata, extents tables, traces,
plans and dependency snapshots. Then each pack once: its digest, and in it every block that an index names. Memory is
bounded by the indexes (52 bytes a block, and 4 more for each use of one) and a few packs. A build that needs an object
that was removed and finds none stores it anew.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from imagefs.errors import DamagedObject, FormatError, NoSuchImage, NoSuchSnapshot
from imagefs.format import is_digest
from imagefs.format.codec import decode
from imagefs.format.documents import DeviceEntry, Manifest
from imagefs.format.index import NOWHERE, BlockLocation, Index
from imagefs.housekeeping.fsck import check_tree
from imagefs.housekeeping.listing import must_list
from imagefs.progress import Progress
from imagefs.repository.images import KINDS, Images, object_path
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.traces import Traces
from stripefs.errors import NotFound

__all__ = ["Damage", "VerifyResult", "remove_damaged", "verify"]

_AT_ONCE = 4  # packs of 32 MiB that are read and checked at the same time
_MOST = 20  # lines about one image's tree
_OTHER = "holds other bytes than its name says"


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """One thing that is wrong: where in the store, what, and which images need it.

    spoiled: it does not hold the bytes that it was stored with, so that storing it anew helps.
    """

    path: str
    what: str
    images: tuple[str, ...] = ()
    spoiled: bool = False


@dataclass(slots=True)
class VerifyResult:
    """The result of a verification: counts and bytes of all that was read, and the damage."""

    images: int = 0
    objects: int = 0
    blocks: int = 0
    bytes: int = 0
    damage: list[Damage] = field(default_factory=list)


def verify(images: Images, digest: str = "", progress: Progress | None = None) -> VerifyResult:
    """Check one image, or with no digest everything in the store.

    Raises NoSuchImage for an image that is not there, Unsupported where a store cannot be listed, and StoreErrors where
    it cannot be reached; everything else that is wrong is in the answer.
    """
    return _Verify(images, progress or Progress()).run(digest)


@dataclass(slots=True)
class _Needed:
    """A pack: its length by each who needs it, and which blocks of which index lie in it."""

    lengths: set[int] = field(default_factory=set)
    uses: list[tuple[Index, array[int]]] = field(default_factory=list)


class _Verify:
    def __init__(self, images: Images, progress: Progress) -> None:
        self._images = images
        self._progress = progress
        self._result = VerifyResult()
        self._found: list[tuple[str, str, bool]] = []  # path, what, spoiled
        self._users: dict[str, set[str]] = {}  # images by path of what they need
        self._indexes: dict[str, Index] = {}
        self._packs: dict[bytes, _Needed] = {}
        self._sources: dict[str, tuple[str, ...]] = {}  # the sources of each image

    def run(self, digest: str) -> VerifyResult:
        if digest:
            self._documents({digest: self._images.manifest(digest)})
        else:
            must_list(self._images)
            self._progress.stage("documents")
            self._documents(dict(self._manifests()))
            self._tags()
            self._standing()
            self._others()
            self._traces()
            self._snapshots()
        self._progress.stage("packs", sum(max(need.lengths) for need in self._packs.values()))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for count, size in pool.map(self._pack, self._packs.items()):
                self._result.objects += 1
                self._result.blocks += count
                self._result.bytes += size
        self._result.damage = sorted(
            Damage(path, what, tuple(sorted(self._users.get(path, ()))), spoiled) for path, what, spoiled in self._found
        )
        return self._result

    # -- documents -----------------------------------------------------------------------------------------------

    def _manifests(self) -> Iterator[tuple[str, Manifest]]:
        for digest in self._images.images():
            try:
                yield digest, self._images.manifest(digest)
            except NoSuchImage:
                continue  # removed since it was listed
            except (DamagedObject, FormatError) as error:
                self._users[f"images/{digest}"] = {digest}
                self._raised(f"images/{digest}", error)

    def _documents(self, manifests: dict[str, Manifest]) -> None:
        for image, manifest in manifests.items():
            self._result.images += 1
            self._users[f"images/{image}"] = {image}
            self._sources[image] = (manifest.source, *manifest.sources)
            for device in manifest.devices:
                self._look(image, "indexes", device.index, self._index)
                self._devices(image, device)
            self._look(image, "metadata", manifest.metadata.object, partial(self._tree, manifest))
            if manifest.extents:
                self._look(image, "extents", manifest.extents, self._images.extents)

    def _look(self, image: str, kind: str, name: str, check: Callable[[str], object]) -> None:
        """Let `check` read an object that an image needs, once; what it raises is damage."""
        path = _shown(kind, name)
        known = path in self._users
        self._users.setdefault(path, set()).add(image)
        if known:
            return
        self._result.objects += 1
        try:
            check(name)
        except NotFound:
            self._wrong(path, "is missing")
        except (DamagedObject, FormatError) as error:
            self._raised(path, error)

    def _index(self, name: str) -> None:
        """Note what an index says of packs; its lookup must find every block that it lists."""
        index = self._indexes[name] = self._images.index(name)
        blocks = [array("I") for _ in index.packs]
        for block in range(index.blocks):
            place = index.place(block)
            if place.pack == NOWHERE:
                continue
            blocks[place.pack].append(block)
            if index.find(place.digest) is None:
                raise FormatError(f"does not find block {block}, which it has")
        for pack, numbers in zip(index.packs, blocks, strict=True):
            need = self._packs.setdefault(pack.digest, _Needed())
            need.lengths.add(pack.length)
            need.uses.append((index, numbers))

    def _devices(self, image: str, device: DeviceEntry) -> None:
        index = self._indexes.get(device.index)
        if index is None:
            return
        for pack in index.packs:
            self._users.setdefault(_shown("packs", pack.digest.hex()), set()).add(image)
        if index.device_bytes != device.size:
            self._wrong(f"images/{image}", f"says {device.size} bytes of the {device.tag} device, its index no")

    def _tree(self, manifest: Manifest, _name: str) -> None:
        path = _shown("metadata", manifest.metadata.object)
        for number, line in enumerate(check_tree(self._images.metadata(manifest.metadata), manifest.devices)):
            if number == _MOST:
                raise FormatError("and more of the same")
            self._wrong(path, line)

    # -- what no image names -------------------------------------------------------------------------------------

    def _tags(self) -> None:
        for path, _ in self._images.files(b"/tags"):
            tag = path.rpartition(b"/")[2].decode("utf-8", "replace")
            try:
                digest = self._images.resolve(tag)
                if not self._images.has(digest):
                    self._wrong(f"tags/{tag}", f"names the image {digest}, which is not there")
            except NoSuchImage:
                continue  # removed since it was listed, or what a writer that died has left
            except DamagedObject as error:
                self._raised(f"tags/{tag}", error)

    def _standing(self) -> None:
        """Checks the images that are recorded for OCI manifests."""
        for source in self._images.sources():
            path = f"sources/{source.removeprefix('sha256:')}"
            self._result.objects += 1
            try:
                digest = self._images.by_source(source)
            except NoSuchImage:
                self._wrong(path, "names an image that is not there")
            except DamagedObject as error:
                self._raised(path, error)
            else:
                if source not in self._sources.get(digest, (source,)):
                    self._wrong(path, f"names the image {digest}, which was not built from it")

    def _others(self) -> None:
        """Documents and packs that no image reaches: a build may use them yet."""
        for kind in KINDS if self._images.repository.capabilities.list_objects else ():
            for path, status in self._images.files(f"/{kind}".encode()):
                name = path.rpartition(b"/")[2].decode("utf-8", "replace")
                if not is_digest(name) or path != object_path(kind, name) or _shown(kind, name) in self._users:
                    continue  # left by a writer that died; or seen
                if kind == "packs":
                    self._packs.setdefault(bytes.fromhex(name), _Needed()).lengths.add(status.length)
                    continue
                self._result.objects += 1
                if hashlib.sha256(self._images.read(path)).hexdigest() != name:
                    self._wrong(_shown(kind, name), _OTHER, spoiled=True)

    def _traces(self) -> None:
        traces = Traces(self._images.repository)
        checks: list[tuple[str, Callable[[], object]]] = [
            (f"traces/{base}/{workload}/{name}", partial(traces.load, base, workload, name))
            for base in traces.bases()
            for workload in traces.workloads(base)
            for name in traces.names(base, workload)
        ]
        checks += [
            (f"plans/{image}/{workload}", partial(traces.plan, image, workload)) for image, workload in traces.plans()
        ]
        for path, load in checks:
            self._result.objects += 1
            try:
                load()
            except NotFound:
                continue  # removed since it was listed
            except (DamagedObject, FormatError) as error:
                self._raised(path, error)

    def _snapshots(self) -> None:
        snapshots = Snapshots(self._images)
        for name in snapshots.stored():
            path = f"deps/{name}"
            self._result.objects += 1
            try:
                image = snapshots.load(name).image
            except NoSuchSnapshot:
                continue  # removed since it was listed
            except (DamagedObject, FormatError) as error:
                self._raised(path, error)
                continue
            self._users[path] = {image}
            if not self._images.has(image):
                self._wrong(path, f"names the image {image}, which is not there")
            elif image in self._sources and name not in self._sources[image]:
                self._wrong(path, f"names the image {image}, which was not made for it")

    # -- packs ---------------------------------------------------------------------------------------------------

    def _pack(self, item: tuple[bytes, _Needed]) -> tuple[int, int]:
        """Look at a pack; how many blocks were in it, and its bytes."""
        digest, need = item
        path = _shown("packs", digest.hex())
        try:
            data = self._images.read(object_path("packs", digest.hex()))
        except NotFound:
            self._wrong(path, "is missing")
            return 0, 0
        self._progress.advance(len(data))
        if {len(data)} != need.lengths:
            wanted = " and ".join(map(str, sorted(need.lengths)))
            self._wrong(path, f"has {len(data)} bytes instead of {wanted}")
        if hashlib.sha256(data).digest() != digest:
            self._wrong(path, _OTHER, spoiled=True)
        seen: set[tuple[str, bytes, int, int]] = set()
        damaged = 0
        for codec, place in _places(need.uses):
            key = (codec, place.digest, place.offset, place.stored)
            if key not in seen:
                seen.add(key)
                damaged += decode(codec, data[place.offset : place.offset + place.stored], place) is None
        if damaged:
            self._wrong(path, f"{damaged} of its {len(seen)} blocks are damaged")
        return len(seen), len(data)

    def _wrong(self, path: str, what: str, *, spoiled: bool = False) -> None:
        self._found.append((path, what, spoiled))

    def _raised(self, path: str, error: DamagedObject | FormatError) -> None:
        self._wrong(path, error.message, spoiled=isinstance(error, DamagedObject))


def _places(uses: Iterable[tuple[Index, array[int]]]) -> Iterator[tuple[str, BlockLocation]]:
    for index, blocks in uses:
        for place in map(index.place, blocks):
            yield index.packs[place.pack].codec, place


def _shown(kind: str, name: str) -> str:
    return object_path(kind, name).decode().removeprefix("/")


def remove_damaged(images: Images, damage: Iterable[Damage]) -> list[str]:
    """Remove the spoiled objects but manifests and tags; paths of those that were there. Raises StoreErrors."""
    removed = []
    for path in sorted({one.path for one in damage if one.spoiled}):
        if path.partition("/")[0] in ("images", "tags"):
            continue  # a build writes them again where they are damaged
        try:
            images.discard(f"/{path}".encode())
        except NotFound:
            continue  # somebody else removed it
        removed.append(path)
    return removed
