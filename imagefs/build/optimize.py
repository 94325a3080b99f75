"""Optimizes an image by a hot device: copies of what starts touch first, in that order, for one sequential read.

The image that was built stays as it is. The new one has its cold device, one device more, and metadata in which the
copied extents lie there and every other byte is the same. The copies follow from the traces alone: same image and
traces, same bytes. An image that was optimised before is optimised from what it was made of.

Extents are read back from the packs of the stored image in batches: those of a batch that lie close together in a pack
as one range, several ranges at once because stores have latency, and a batch ahead of what is being written. Blocks
that do not have the digest of the index are not copied. Memory is bounded by two batches.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from imagefs.blocks.source import PackSource
from imagefs.build import image
from imagefs.build.content import Content
from imagefs.build.packs import Packs, store
from imagefs.errors import BuildError, DamagedObject
from imagefs.format import codec, erofs, index, is_source
from imagefs.format.documents import DeviceEntry, Manifest
from imagefs.format.erofs.write import add_device
from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Index
from imagefs.format.inodes import COLD, HOT, Inode, address
from imagefs.format.trace import Trace
from imagefs.progress import Progress
from imagefs.repository.images import Images
from imagefs.repository.traces import Traces
from imagefs.settings import AUTO, Compression
from imagefs.trace.planner import FileExtent, MergedTraces, combine, make_plan
from imagefs.trace.references import TracedImage, open_image
from stripefs.retry import RetryPolicy, retry
from stripefs.settings import StoreSettings

__all__ = ["OptimizeReport", "build_optimized", "device_blocks", "optimize"]

_SHARE = 0.5
"""Part of a workload's traces that have to touch an extent."""


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """The result of an optimization: the manifest's digest and that of the image it was made from.

    traces: how many took part; left_out: how many did not, being incomplete or empty. by_digest, by_path, missing: how
    many of their touches were found in the image by content, by name, or not. extents: how many were copied.
    hot_bytes: of the hot device, stored_bytes of its blocks as they are stored, new_bytes of packs that were not in the
    store, metadata_bytes of the EROFS image. plan_blocks: blocks in the plan of each workload.
    """

    digest: str
    base: str
    traces: int
    left_out: int
    by_digest: int
    by_path: int
    missing: int
    extents: int
    hot_bytes: int
    stored_bytes: int
    new_bytes: int
    metadata_bytes: int
    plan_blocks: Mapping[str, int]


def optimize(
    images: Images,
    digest: str,
    traces: Iterable[Trace],
    *,
    tag: str = "",
    share: float = _SHARE,
    replication: int = 0,
    compression: Compression = AUTO,
    progress: Progress | None = None,
) -> OptimizeReport:
    """Give the image with that manifest the hot device that the traces ask for, and let `tag` name the result.

    Of each workload's traces an extent is copied that at least `share` touched. The packs of the hot device get
    `replication` replicas each, those that were there before too; 0 leaves that to the store, and anything else needs
    the repository's capability. Raises BuildError when no trace touched anything that is in the image, NoSuchImage,
    DamagedObject, FormatError and StoreErrors.
    """
    report = _optimize(images, digest, traces, tag, share, compression, progress or Progress(), replication)
    if report is None:
        raise BuildError(
            "no trace touched anything that is in the image", hint="`imagefs trace show` tells what a trace holds"
        )
    return report


def build_optimized(
    root: Inode,
    contents: Mapping[Inode, Content],
    images: Images,
    traces: Iterable[Trace],
    *,
    tag: str = "",
    source: str = "",
    config: Mapping[str, Any] | None = None,
    compression: Compression = AUTO,
    progress: Progress | None = None,
) -> tuple[image.BuildReport, OptimizeReport | None]:
    """Build an image and optimise it, so that `tag` never names one without its hot device.

    When no trace touched anything that is in the image, `tag` names it as it was built and the second report is None.
    """
    built = image.build(
        root, contents, images, source=source, config=config, like=tag, compression=compression, progress=progress
    )
    report = _optimize(images, built.digest, traces, tag, _SHARE, compression, progress or Progress())
    if report is None and tag:
        images.tag(tag, built.digest)
    return built, report


def _optimize(
    images: Images,
    digest: str,
    traces: Iterable[Trace],
    tag: str,
    share: float,
    compression: Compression,
    progress: Progress,
    replication: int = 0,
) -> OptimizeReport | None:
    progress.stage("matching")
    base = open_image(images, images.manifest(digest).base or digest)
    merged = _by_workload(traces, base, share)
    wanted = dict.fromkeys(extent.cold for one in merged.values() for extent in one.wanted)  # workload by workload
    places = base.target.of(set(wanted))
    copies = _lay_out([places[cold] for cold in wanted if cold in places])
    if not copies:
        return None
    packs = Packs(images.put_pack)
    device, stored_bytes = _store_device(images, base, list(copies.values()), packs, compression, progress)
    if replication:
        images.replicate_packs(packs.all, replication)
    progress.stage("publishing")
    moved = {address(COLD, extent.cold): extent.place for extent in copies.values()}
    blocks = device.size // erofs.BLOCK
    metadata = images.put_metadata(add_device(base.target.image, erofs.DeviceSlot(b"hot", blocks), moved))
    built = base.manifest
    devices = [*built.devices, device]

    def check() -> None:
        if not images.has(base.digest):
            hint = "nothing was published; build it again"
            raise BuildError("the image was removed while it was optimised", hint=hint)

    manifest = Manifest(built.source, built.config, metadata, devices, base.digest, built.extents)
    digest = image.put_checked(manifest, images, check)
    plans = {workload: make_plan(digest, workload, one, copies) for workload, one in merged.items() if one.wanted}
    for plan in plans.values():
        Traces(images.repository).put_plan(plan)
    if is_source(built.source):
        images.set_source(built.source, digest)
    if tag:
        images.tag(tag, digest)
    return OptimizeReport(
        digest=digest,
        base=base.digest,
        traces=sum(one.traces for one in merged.values()),
        left_out=sum(one.left_out for one in merged.values()),
        by_digest=sum(one.by_digest for one in merged.values()),
        by_path=sum(one.by_path for one in merged.values()),
        missing=sum(one.missing for one in merged.values()),
        extents=len(copies),
        hot_bytes=device.size,
        stored_bytes=stored_bytes,
        new_bytes=packs.stored_bytes,
        metadata_bytes=metadata.size,
        plan_blocks={workload: plan.blocks for workload, plan in plans.items()},
    )


def _store_device(
    images: Images,
    base: TracedImage,
    extents: Sequence[FileExtent],
    packs: Packs,
    compression: Compression,
    progress: Progress,
) -> tuple[DeviceEntry, int]:
    """Store a device that holds copies of the extents one after the other, and the bytes of its blocks as stored.

    Its first blocks, which starts touch first, are the sample that decides about its codec.
    """
    progress.stage("copying", sum(extent.length for extent in extents))
    size = erofs.BLOCK * sum(extent.blocks for extent in extents)
    cold = images.index(base.manifest.devices[COLD - 1].index)
    blocks = device_blocks(images, cold, extents)
    first = list(itertools.islice(blocks, codec.SAMPLE))
    packs.codec = codec.choose(compression, (data for _, data in first))
    # Blocks are not looked for in other images: then the device would depend on what else is in the store.
    count = -(-size // index.BLOCK)
    found = store(itertools.chain(first, blocks), count, packs, lambda _digest: None, progress.advance)
    document = io.BytesIO()
    index.write(found, packs.all, size, document)
    entry = DeviceEntry("hot", size, images.put_object("indexes", document.getvalue()))
    return entry, sum(place.stored for place in set(found))


def _by_workload(traces: Iterable[Trace], base: TracedImage, share: float) -> dict[str, MergedTraces]:
    """The merged traces of each workload, that of most traces first."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.workload, []).append(trace)
    merged = [(workload, combine(group, base.target, share, ahead=False)) for workload, group in groups.items()]
    return dict(sorted(merged, key=lambda pair: (-pair[1].traces, pair[0])))


def _lay_out(extents: Sequence[FileExtent]) -> dict[int, FileExtent]:
    """The place of each extent in the hot device, by its cold place."""
    found, cursor = {}, 0
    for extent in extents:
        found[extent.cold] = extent._replace(place=address(HOT, cursor))
        cursor += extent.blocks
    return found


_AT_ONCE = 8
_BATCH = 256  # blocks: 32 MiB
_RANGE = 4 << 20
_GAP = 256 << 10  # bytes that are sooner read in vain than a second range is asked for
_RETRIES = RetryPolicy(tries=4, first=0.5)
_PER_BLOCK = BLOCK // erofs.BLOCK
Decoded = dict[int, bytes]


def device_blocks(images: Images, index: Index, extents: Sequence[FileExtent]) -> Iterator[tuple[int, bytes]]:
    """Number and content of each block of a device that holds copies of `extents`, one after the other.

    Each begins on a multiple of 4 KiB. `index` is that of the device where their cold places are. Raises DamagedObject
    and StoreErrors.
    """
    number, data = 0, bytearray()
    for content in _contents(images, index, extents):
        data += bytes(-len(data) % erofs.BLOCK)
        data += content
        while len(data) > BLOCK - erofs.BLOCK:
            # In the last 4 KiB of a block no other extent can begin.
            yield number, bytes(data[:BLOCK])
            number += 1
            del data[:BLOCK]
    if data:
        yield number, bytes(data)


def _contents(images: Images, index: Index, extents: Sequence[FileExtent]) -> Iterator[bytes]:
    source = PackSource(StoreSettings(), connect=lambda _settings: images.repository, owned=False)

    def read(group: Sequence[tuple[int, BlockLocation]]) -> Decoded:
        return _read_group(source, images.url, index, group)

    with contextlib.closing(source), ThreadPoolExecutor(_AT_ONCE) as pool:
        batches = _batches(extents)
        current = _Batch(pool, read, index, next(batches, []), {})
        try:
            while current.extents:
                following = _Batch(pool, read, index, next(batches, []), current.blocks)
                yield from current.contents()
                current = following
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _batches(extents: Sequence[FileExtent]) -> Iterator[list[FileExtent]]:
    """The extents in pieces that need no more than `_BATCH` blocks each."""
    batch: list[FileExtent] = []
    blocks: set[int] = set()
    for extent in extents:
        blocks.add(extent.cold // _PER_BLOCK)
        if len(blocks) > _BATCH:
            yield batch
            batch, blocks = [], {extent.cold // _PER_BLOCK}
        batch.append(extent)
    if batch:
        yield batch


class _Batch:
    """Extents whose blocks are on their way; `blocks` holds for each block the range that brings it."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        read: Callable[[Sequence[tuple[int, BlockLocation]]], Decoded],
        index: Index,
        extents: list[FileExtent],
        before: dict[int, Future[Decoded]],
    ) -> None:
        self.extents = extents
        needed = {extent.cold // _PER_BLOCK for extent in extents}
        self.blocks = {block: before[block] for block in needed & before.keys()}
        for group in _ranges(index, sorted(needed - before.keys())):
            future = pool.submit(read, group)
            self.blocks |= dict.fromkeys((block for block, _ in group), future)

    def contents(self) -> Iterator[bytes]:
        for extent in self.extents:
            block, page = divmod(extent.cold, _PER_BLOCK)
            data, at = self.blocks[block].result()[block], page * erofs.BLOCK
            yield data[at : at + extent.length].ljust(extent.length, b"\0")


def _ranges(index: Index, blocks: Sequence[int]) -> Iterator[list[tuple[int, BlockLocation]]]:
    """The blocks in groups that are read as one range each."""
    group: list[tuple[int, BlockLocation]] = []
    begin = end = pack = 0
    for block, place in sorted(
        ((block, index.place(block)) for block in blocks), key=lambda found: (found[1].pack, found[1].offset)
    ):
        joined = place.pack == pack and place.offset - end <= _GAP and place.offset + place.stored - begin <= _RANGE
        if group and not joined:
            yield group
            group = []
        if not group:
            begin, end, pack = place.offset, place.offset, place.pack
        group.append((block, place))
        end = max(end, place.offset + place.stored)
    if group:
        yield group


def _read_group(source: PackSource, url: str, index: Index, group: Sequence[tuple[int, BlockLocation]]) -> Decoded:
    """The blocks of a group, checked."""
    first = group[0][1]
    if first.pack == NOWHERE:
        return {block: b"" for block, _ in group}
    pack = index.packs[first.pack]
    length = max(place.offset + place.stored for _, place in group) - first.offset
    data = memoryview(retry(lambda: source.read(pack, first.offset, length), _RETRIES))
    found = {}
    for block, place in group:
        at = place.offset - first.offset
        content = codec.decode(pack.codec, data[at : at + place.stored], place)
        if content is None:
            raise DamagedObject(f"a block of pack {pack.digest.hex()} in {url} holds other bytes than the image says")
        found[block] = content
    return found
