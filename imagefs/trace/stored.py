"""An image of a store with all that traces need to be made for it, matched to it, and planned from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefs.errors import FormatError
from imagefs.format.erofs import ErofsImage
from imagefs.format.manifest import Manifest, Metadata
from imagefs.format.plan import Plan
from imagefs.format.trace import Trace
from imagefs.repository.images import Images
from imagefs.trace.plan import Merged, combine, make_plan
from imagefs.trace.target import Target

__all__ = ["Opened", "open_image", "plan_for"]


@dataclass(frozen=True, slots=True)
class Opened:
    """An image and the one it was optimised from, which may be itself: digests, manifests, and both as a `Target`."""

    digest: str
    manifest: Manifest
    base: str
    base_manifest: Manifest
    target: Target


def open_image(images: Images, digest: str, folder: Path | None = None) -> Opened:
    """The image with that manifest. EROFS images are taken from `folder` (DIGEST.erofs) where they are there.

    Raises NoSuchImage, DamagedObject, StoreErrors, and FormatError for an image that has no extents table.
    """
    manifest = images.manifest(digest)
    base = manifest.base or digest
    base_manifest = images.manifest(base) if manifest.base else manifest
    if base_manifest.base:
        raise FormatError(f"the image {digest} was optimised from one that was optimised itself")
    if not base_manifest.extents:
        raise FormatError(f"the image {base} has no extents table", hint="build it again")
    image = ErofsImage(_metadata(images, manifest.metadata, folder))
    base_image = ErofsImage(_metadata(images, base_manifest.metadata, folder)) if manifest.base else image
    target = Target(image, base_image, images.extents(base_manifest.extents))
    return Opened(digest, manifest, base, base_manifest, target)


def plan_for(opened: Opened, workload: str, traces: Sequence[Trace], share: float = 0.5) -> tuple[Plan, Merged]:
    """The plan for a mount of that image, from traces of whatever images, and what the merge says about them."""
    merged = combine(traces, opened.target, share)
    extents = opened.target.of({wanted.cold for wanted in merged.wanted})
    return make_plan(opened.digest, workload, merged, extents), merged


def _metadata(images: Images, entry: Metadata, folder: Path | None) -> bytes:
    if folder is not None:
        try:
            data = (folder / f"{entry.digest}.erofs").read_bytes()
        except FileNotFoundError:
            data = b""
        if hashlib.sha256(data).hexdigest() == entry.digest:
            return data
    return images.metadata(entry)
