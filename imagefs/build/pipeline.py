"""The build pipeline: from the source that a user names to an image in a store, optimised where there are traces.

dir:PATH               a directory
oci:LAYOUT[:REF]       an image of an OCI image layout, by name or digest where there are several
docker://REFERENCE     an image of a registry

A build works in a scratch folder that is removed when it ends. It holds a lock there, which ends with the process; so
the next build can tell what a killed one left, and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagefs.build import image, oci, optimize, pull
from imagefs.build.content import Content, scan
from imagefs.build.layers import MergedLayers, entries
from imagefs.build.pull import Registry
from imagefs.errors import BuildError
from imagefs.format.inodes import Inode
from imagefs.format.trace import Trace
from imagefs.progress import Progress
from imagefs.reference import TAG, Platform
from imagefs.repository.artifact import Descriptor
from imagefs.repository.images import Images
from imagefs.settings import Compression, LayerLimits
from imagefs.trace.references import adopt, traces_of_tag
from stripefs.errors import ConfigError, Unsupported
from stripefs.osutil import flocked

__all__ = [
    "BuildOptions",
    "Built",
    "SourceTree",
    "check_source",
    "local_errors",
    "make_image",
    "open_source",
    "scratch",
]

_PREFIX = "build-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new folder below `parent`, which is made where it is missing. Raises BuildError."""
    with local_errors(parent):
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with flocked(parent, _DIRECTORY):  # so that nobody sweeps ours away before it is locked
            _sweep(parent)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            lock = os.open(folder, _DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def local_errors(where: Path | str) -> Iterator[None]:
    """Turn an OSError about a local file, else about `where`, into a BuildError."""
    try:
        yield
    except OSError as error:
        name = error.filename if isinstance(error.filename, str | bytes) else str(where)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise BuildError(
            f"{os.fsdecode(name)}: {error.strerror or error}",
            hint="nothing was published; --tmp names a folder with more space" if full else "",
        ) from error


def _sweep(parent: Path) -> None:
    """Remove the folders of builds that are no more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), flocked(folder, _DIRECTORY, wait=False):  # in use, or just ended
            shutil.rmtree(folder, ignore_errors=True)


_AT_ONCE = 4  # layers that are unpacked at the same time, or as many as there are processors
_KINDS = "give oci:LAYOUT[:REF], dir:PATH or docker://REFERENCE"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """tmp: the folder that what is unpacked is put below for a while; limits: what a layer may ask for.

    lowest: so many of the lowest layers alone, 0 for all. compression: of blocks, also those of the hot device.
    """

    tmp: Path
    limits: LayerLimits = field(default_factory=LayerLimits)
    platform: Platform = field(default_factory=Platform.current)
    registry: Registry = field(default_factory=Registry)
    lowest: int = 0
    compression: Compression = field(default_factory=Compression)


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A tree and what its files hold; the digest and the config of the OCI image it is from, "" and {} for none."""

    root: Inode
    contents: Mapping[Inode, Content]
    digest: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def check_source(source: str) -> None:
    """Raise ConfigError for what is none of the three kinds."""
    kind, colon, rest = source.partition(":")
    if not colon or kind not in ("oci", "dir", "docker") or not rest.removeprefix("//"):
        hint = f"did you mean dir:{source}? or {_KINDS}" if os.path.isdir(source) else _KINDS
        raise ConfigError(f"{source!r} is nothing that an image is built from", hint=hint)
    if kind == "docker" and not rest.startswith("//"):
        raise ConfigError(f"{source!r} is no reference", hint=f"write docker://{rest}")


@contextmanager
def open_source(source: str, how: BuildOptions, progress: Progress) -> Iterator[SourceTree]:
    """The tree of `source`, which lasts as long as this. The unpacked layers are then removed.

    Raises ConfigError, BuildError and HostileLayer.
    """
    check_source(source)
    kind, _, rest = source.partition(":")
    if kind == "dir":
        progress.stage("looking")
        yield SourceTree(*scan(os.path.expanduser(rest)))
        return
    with scratch(how.tmp) as folder:
        if kind == "docker":
            variant = pull.fetch(source, folder / "layout", how.platform, how.registry, progress, lowest=how.lowest)
            layout, image = _image(str(folder / "layout"), how.platform, variant)
        else:
            layout, image = _image(os.path.expanduser(rest), how.platform)
        if how.lowest:
            image = image.lowest(how.lowest)
        with local_errors(folder):
            merged = MergedLayers(how.limits)
            for layer in _unpacked(layout, image, folder, how.limits, progress):
                merged.add(entries(str(layer), how.limits))
        yield SourceTree(*merged.tree(), digest=image.digest, config=image.config)


def _image(rest: str, platform: Platform, variant: str = "") -> tuple[oci.Layout, oci.LayoutSource]:
    """From LAYOUT[:REF]. A directory whose own name has a colon is one."""
    path, _, reference = (rest, "", "") if os.path.isdir(rest) else rest.partition(":")
    layout = oci.Layout(path)
    return layout, layout.image(reference, platform, variant)


def _unpacked(
    layout: oci.Layout, image: oci.LayoutSource, folder: Path, limits: LayerLimits, progress: Progress
) -> Iterator[Path]:
    """The archives of the layers, the lowest first, each as soon as it is there."""
    progress.stage("unpacking", sum(descriptor.size for descriptor, _ in image.layers))
    unwanted = threading.Event()

    def advance(count: int) -> None:
        if unwanted.is_set():
            raise BuildError("another layer has failed")  # it ends this thread, and is not shown
        progress.advance(count)

    def unpack(number: int, layer: tuple[Descriptor, str]) -> Path:
        target = folder / f"{number}.tar"
        oci.unpack(layout, layer, target, limits, advance)
        return target

    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as pool:
        under_way: deque[Future[Path]] = deque(pool.submit(unpack, *each) for each in enumerate(image.layers))
        try:
            while under_way:
                yield under_way.popleft().result()
        finally:
            unwanted.set()
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Built:
    """digest: of the image that was asked for. built: how it was built; hot: its hot device, where traces asked for
    one."""

    digest: str
    built: image.BuildReport
    hot: optimize.OptimizeReport | None


def make_image(
    source: str,
    images: Images,
    how: BuildOptions,
    *,
    tag: str = "",
    traces: Sequence[Trace] | None = None,
    progress: Progress | None = None,
) -> Built:
    """Build the image of `source`, one of those that `imagefs.build.pipeline` knows.

    traces: what to optimise it by; None for those of the image that `tag` names so far. They become traces of the new
    image too. Raises ConfigError and BuildError for the source, FormatError for what no image can hold, StoreErrors.
    """
    progress = progress or Progress()
    check_source(source)
    if tag and not TAG.fullmatch(tag):
        raise ConfigError(f"{tag!r} is no tag", hint="letters, digits, '.', '_' and '-', at most 128")
    if not images.repository.capabilities.put:
        raise Unsupported(f"{images.url} cannot be written to", hint="build where it lies, or into another store")
    if traces is None:
        traces = traces_of_tag(images, tag) if tag else []
    with open_source(source, how, progress) as tree, local_errors(source):
        built, optimized = optimize.build_optimized(
            tree.root,
            tree.contents,
            images,
            traces,
            tag=tag,
            source=tree.digest,
            config=tree.config,
            compression=how.compression,
            progress=progress,
        )
    if optimized is not None:
        adopt(images, optimized.digest, traces)
    return Built(optimized.digest if optimized else built.digest, built, optimized)
