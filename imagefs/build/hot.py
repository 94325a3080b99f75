"""The hot device: copies of what starts touch first, in that order, so that one sequential read brings them.

The image that was built stays as it is. The new one has its cold device, one device more, and metadata in which the
copied extents lie there and every other byte is the same. What is copied follows from the traces alone: same image and
traces, same bytes. An image that was optimised before is optimised from what it was made of.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagefs.build import image
from imagefs.build.blocks import Packs, store
from imagefs.build.content import Content
from imagefs.build.copying import device_blocks
from imagefs.errors import BuildError
from imagefs.format import erofs, index
from imagefs.format.erofs.write import add_device
from imagefs.format.extents import COLD, HOT
from imagefs.format.inode import Inode, address
from imagefs.format.manifest import DeviceEntry, Manifest
from imagefs.format.trace import Trace
from imagefs.progress import Progress
from imagefs.repository.images import Images, is_source
from imagefs.repository.traces import Traces
from imagefs.trace.plan import Merged, combine, make_plan
from imagefs.trace.stored import Opened, open_image
from imagefs.trace.target import Extent

__all__ = ["Report", "build_optimized", "optimize"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was made: the manifest's digest and that of the image it was made from.

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
    share: float = 0.5,
    replication: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Give the image with that manifest the hot device that the traces ask for, and let `tag` name the result.

    Of each workload's traces an extent is copied that at least `share` touched. The packs of the hot device get
    `replication` replicas each, those that were there before too; 0 leaves that to the store, and anything else needs
    the repository's capability. Raises BuildError when no trace touched anything that is in the image, NoSuchImage,
    DamagedObject, FormatError and StoreErrors.
    """
    report = _optimize(images, digest, traces, tag, share, progress or Progress(), replication)
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
    share: float = 0.5,
    progress: Progress | None = None,
) -> tuple[image.Report, Report | None]:
    """Build an image and optimise it, so that `tag` never names one without its hot device.

    When no trace touched anything that is in the image, `tag` names it as it was built and the second report is None.
    """
    built = image.build(root, contents, images, source=source, config=config, like=tag, progress=progress)
    report = _optimize(images, built.digest, traces, tag, share, progress or Progress())
    if report is None and tag:
        images.tag(tag, built.digest)
    return built, report


def _optimize(
    images: Images,
    digest: str,
    traces: Iterable[Trace],
    tag: str,
    share: float,
    progress: Progress,
    replication: int = 0,
) -> Report | None:
    progress.stage("matching")
    base = open_image(images, images.manifest(digest).base or digest)
    merged = _by_workload(traces, base, share)
    places = base.target.of({wanted.cold for one in merged.values() for wanted in one.wanted})
    copies = _lay_out([places[cold] for cold in _order(merged) if cold in places])
    if not copies:
        return None
    packs = Packs(images.put_pack)
    device, stored_bytes = _store_device(images, base, list(copies.values()), packs, progress)
    if replication:
        images.replicate_packs(packs.all, replication)
    progress.stage("publishing")
    moved = {address(COLD, extent.cold): extent.place for extent in copies.values()}
    blocks = device.size // erofs.BLOCK
    metadata = images.put_metadata(add_device(base.target.image, erofs.DeviceSlot(b"hot", blocks), moved))
    built = base.manifest
    devices = [*built.devices, device]
    digest = _publish(images, Manifest(built.source, built.config, metadata, devices, base.digest, built.extents))
    plans = {workload: make_plan(digest, workload, one, copies) for workload, one in merged.items() if one.wanted}
    for plan in plans.values():
        Traces(images.repository).put_plan(plan)
    if is_source(built.source):
        images.set_source(built.source, digest)
    if tag:
        images.tag(tag, digest)
    return Report(
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
    images: Images, base: Opened, extents: Sequence[Extent], packs: Packs, progress: Progress
) -> tuple[DeviceEntry, int]:
    """Store a device that holds copies of the extents one after the other, and the bytes of its blocks as stored."""
    progress.stage("copying", sum(extent.length for extent in extents))
    size = erofs.BLOCK * sum(extent.blocks for extent in extents)
    cold = images.index(base.manifest.devices[COLD - 1].index)
    blocks = device_blocks(images, cold, extents)
    # Blocks are not looked for in other images: then the device would depend on what else is in the store.
    found = store(blocks, -(-size // index.BLOCK), packs, lambda _digest: None, progress.advance)
    document = io.BytesIO()
    index.write(found, packs.all, size, document)
    entry = DeviceEntry("hot", size, images.put_index(document.getvalue()))
    return entry, sum(place.stored for place in set(found))


def _by_workload(traces: Iterable[Trace], base: Opened, share: float) -> dict[str, Merged]:
    """What the traces of each workload say, that of most traces first."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.workload, []).append(trace)
    merged = [(workload, combine(group, base.target, share)) for workload, group in groups.items()]
    return dict(sorted(merged, key=lambda pair: (-pair[1].traces, pair[0])))


def _order(merged: Mapping[str, Merged]) -> Iterable[int]:
    """The cold places to copy, each once: what one workload needs lies together."""
    return dict.fromkeys(wanted.cold for one in merged.values() for wanted in one.wanted)


def _lay_out(extents: Sequence[Extent]) -> dict[int, Extent]:
    """Where each extent lies in the hot device, by its cold place."""
    found, cursor = {}, 0
    for extent in extents:
        found[extent.cold] = extent._replace(place=address(HOT, cursor))
        cursor += extent.blocks
    return found


def _publish(images: Images, manifest: Manifest) -> str:
    """Store the manifest; its digest. Raises BuildError where the image it was made from is gone."""
    was_there = images.has(hashlib.sha256(manifest.to_json()).hexdigest())
    digest = images.put(manifest)
    if not images.has(manifest.base):
        if not was_there:
            images.remove(digest)
        raise BuildError("the image was removed while it was optimised", hint="nothing was published; build it again")
    return digest
