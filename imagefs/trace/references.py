"""References to stored traces, handing them on to the next build, and the image of a store that they are applied to.

FILE                                a trace as a document, compressed or not
STORE#TAG[/WORKLOAD[/NAME]]         those of an image in a store: all, those of a workload, or one
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import zstandard

from imagefs.errors import FormatError, NoSuchImage
from imagefs.format.documents import Manifest, Metadata
from imagefs.format.erofs import ErofsImage
from imagefs.format.trace import SIZE_LIMIT, Plan, Trace, check_workload
from imagefs.reference import Reference, parse_reference
from imagefs.repository.images import Images
from imagefs.repository.traces import Traces, unpack
from imagefs.trace.planner import ImageView, MergedTraces, combine, make_plan
from stripefs.errors import ConfigError

__all__ = [
    "TraceReference",
    "TracedImage",
    "adopt",
    "complete",
    "load_file",
    "newest_traces",
    "open_image",
    "parse_traces",
    "plan_for",
    "stored_traces",
    "traces_of_tag",
]

_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class TraceReference:
    """Traces of an image in a store: all, of one workload, or one by name."""

    image: Reference
    workload: str = ""
    name: str = ""


def parse_traces(text: str) -> Path | TraceReference:
    """A file that is there, else a reference. Raises ConfigError."""
    path = Path(text).expanduser()
    if path.is_file():
        return path
    store, hash_sign, rest = text.rpartition("#")
    if not hash_sign:
        raise ConfigError(
            f"{text!r} is no file that is there", hint="give a trace's file, or STORE#TAG[/WORKLOAD[/NAME]]"
        )
    tag, *parts = rest.split("/")
    if len(parts) > 2:
        raise ConfigError(f"{text!r} names no trace", hint="write STORE#TAG/WORKLOAD/NAME")
    workload, name = [*parts, "", ""][:2]
    try:
        return TraceReference(parse_reference(f"{store}#{tag}"), check_workload(workload) if workload else "", name)
    except FormatError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def load_file(path: Path) -> Trace:
    """The trace in a file. Raises FormatError, and ConfigError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return Trace.from_json(unpack(data) if data.startswith(_ZSTD) else data)
    except zstandard.ZstdError as error:
        raise FormatError(f"{path} cannot be unpacked: {error}") from error
    except FormatError as error:
        raise FormatError(f"{path}: {error.message}", hint=error.hint) from error


def stored_traces(images: Images, image: str, workload: str = "", name: str = "") -> list[Trace]:
    """The newest traces of an image (a tag or digest), of each workload or of one, or the one with that name.

    Those of an optimised image are those of the image it was made from. Damaged traces are left out, and logged.
    Raises NoSuchImage, NotFound, StoreErrors, and DamagedObject and FormatError for the one that was named.
    """
    digest = images.resolve(image)
    base = images.manifest(digest).base or digest
    traces = Traces(images.repository)
    if name:
        return [traces.load(base, workload, name)]
    workloads = [workload] if workload else traces.workloads(base)
    return [trace for one in sorted(workloads) for trace in traces.newest(base, one)]


def traces_of_tag(images: Images, tag: str) -> list[Trace]:
    """The mergeable traces of the image that a tag names, none where it names none yet. Raises as above."""
    try:
        return complete(stored_traces(images, tag))
    except NoSuchImage:
        return []


def newest_traces(images: Images) -> list[Trace]:
    """The mergeable traces of the newest image in a place, none where it has no image yet. Raises StoreErrors,
    DamagedObject and FormatError."""
    stored = images.images()
    newest = max(stored, key=lambda digest: stored[digest].mtime_ns, default="")
    return complete(stored_traces(images, newest)) if newest else []


def complete(traces: Iterable[Trace]) -> list[Trace]:
    """The traces that can be merged."""
    return [trace for trace in traces if trace.complete and trace.touches]


def adopt(images: Images, image: str, traces: Sequence[Trace]) -> int:
    """Store traces of other builds as traces of the image with the manifest `image`; how many that were.

    Their extents are found there by content or by place, whatever build they are of. So the next build, which looks for
    traces of this one, has them even when no start of this one was recorded. Raises StoreErrors.
    """
    base = images.manifest(image).base or image
    store = Traces(images.repository)
    others = [trace for trace in traces if trace.image != base]
    for trace in others:
        store.put(replace(trace, image=base))
    for workload in {trace.workload for trace in others}:
        store.prune(base, workload)
    return len(others)


@dataclass(frozen=True, slots=True)
class TracedImage:
    """An image and the one it was optimised from, which may be itself: digests, manifests, and both as a
    `ImageView`."""

    digest: str
    manifest: Manifest
    base: str
    base_manifest: Manifest
    target: ImageView


def open_image(images: Images, digest: str, folder: Path | None = None) -> TracedImage:
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
    target = ImageView(image, base_image, images.extents(base_manifest.extents))
    return TracedImage(digest, manifest, base, base_manifest, target)


def plan_for(
    opened: TracedImage, workload: str, traces: Sequence[Trace], share: float = 0.5
) -> tuple[Plan, MergedTraces]:
    """The plan for a mount of that image, from traces of whatever images, and what the merge says about them.

    Blocks that the kernel only read ahead it will read ahead again where the devices are laid out alike: not where
    starts read from a hot device.
    """
    merged = combine(traces, opened.target, share, ahead=not opened.manifest.base)
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
