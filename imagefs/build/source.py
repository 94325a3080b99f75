"""What an image is built from: a directory, an image layout, or an image of a registry, as one tree.

dir:PATH               a directory
oci:LAYOUT[:REF]       an image of an OCI image layout, by name or digest where there are several
docker://REFERENCE     an image of a registry
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagefs.build import docker, oci
from imagefs.build.content import Content
from imagefs.build.directory import scan
from imagefs.build.merge import Merged
from imagefs.build.registry import Registry
from imagefs.build.scratch import local_errors, scratch
from imagefs.build.tar import entries
from imagefs.errors import BuildError
from imagefs.format.inode import Inode
from imagefs.progress import Progress
from imagefs.reference import Platform
from imagefs.settings import LayerLimits
from stripefs.errors import ConfigError

__all__ = ["How", "Tree", "check_source", "open_source"]

_AT_ONCE = 4  # layers that are unpacked at the same time, or as many as there are processors

_KINDS = "give oci:LAYOUT[:REF], dir:PATH or docker://REFERENCE"


@dataclass(frozen=True, slots=True)
class How:
    """tmp: the folder that what is unpacked is put below for a while; limits: what a layer may ask for.

    lowest: so many of the lowest layers alone, 0 for all.
    """

    tmp: Path
    limits: LayerLimits = field(default_factory=LayerLimits)
    platform: Platform = field(default_factory=Platform.here)
    registry: Registry = field(default_factory=Registry)
    lowest: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
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
def open_source(source: str, how: How, progress: Progress) -> Iterator[Tree]:
    """The tree of `source`, which lasts as long as this. What it unpacked is then removed.

    Raises ConfigError, BuildError and HostileLayer.
    """
    check_source(source)
    kind, _, rest = source.partition(":")
    if kind == "dir":
        progress.stage("looking")
        yield Tree(*scan(os.path.expanduser(rest)))
        return
    with scratch(how.tmp) as folder:
        if kind == "docker":
            variant = docker.fetch(source, folder / "layout", how.platform, how.registry, progress, lowest=how.lowest)
            layout, image = _image(str(folder / "layout"), how.platform, variant)
        else:
            layout, image = _image(os.path.expanduser(rest), how.platform)
        if how.lowest:
            image = image.lowest(how.lowest)
        with local_errors(folder):
            merged = Merged(how.limits)
            for layer in _unpacked(layout, image, folder, how.limits, progress):
                merged.add(entries(str(layer), how.limits))
        yield Tree(*merged.tree(), digest=image.digest, config=image.config)


def _image(rest: str, platform: Platform, variant: str = "") -> tuple[oci.Layout, oci.Source]:
    """From LAYOUT[:REF]. A directory whose own name has a colon is one."""
    path, _, reference = (rest, "", "") if os.path.isdir(rest) else rest.partition(":")
    layout = oci.Layout(path)
    return layout, layout.image(reference, platform, variant)


def _unpacked(
    layout: oci.Layout, image: oci.Source, folder: Path, limits: LayerLimits, progress: Progress
) -> Iterator[Path]:
    """The archives of the layers, the lowest first, each as soon as it is there."""
    progress.stage("unpacking", sum(descriptor.size for descriptor, _ in image.layers))
    unwanted = threading.Event()

    def advance(count: int) -> None:
        if unwanted.is_set():
            raise BuildError("another layer has failed")  # nobody asks: it ends this thread soon
        progress.advance(count)

    def unpack(number: int, layer: tuple[oci.Descriptor, str]) -> Path:
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
