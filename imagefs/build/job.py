"""A whole build: from what the user names as the source to an image in a store, optimised where there are traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imagefs.build import hot, image
from imagefs.build.scratch import local_errors
from imagefs.build.source import How, check_source, open_source
from imagefs.format.trace import Trace
from imagefs.gather import adopt, traces_of_tag
from imagefs.progress import Progress
from imagefs.reference import TAG
from imagefs.repository.images import Images
from stripefs.errors import ConfigError, Unsupported

__all__ = ["Made", "make_image"]


@dataclass(frozen=True, slots=True)
class Made:
    """digest: of the image that was asked for. built: how it was built; hot: its hot device, where traces asked for
    one."""

    digest: str
    built: image.Report
    hot: hot.Report | None


def make_image(
    source: str,
    images: Images,
    how: How,
    *,
    tag: str = "",
    traces: Sequence[Trace] | None = None,
    progress: Progress | None = None,
) -> Made:
    """Build the image of `source`, one of those that `imagefs.build.source` knows.

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
        built, optimized = hot.build_optimized(
            tree.root,
            tree.contents,
            images,
            traces,
            tag=tag,
            source=tree.digest,
            config=tree.config,
            progress=progress,
        )
    if optimized is not None:
        adopt(images, optimized.digest, traces)
    return Made(optimized.digest if optimized else built.digest, built, optimized)
