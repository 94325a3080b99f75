"""What an installer wrote in a container, for whoever publishes it.

That is the upper directory of an overlay, which jobs may look at as a lower one but nobody writes to any more. To be
judged it needs the image below it: what was removed there, which packages that had, what was only copied. So the
process that publishes mounts the image, and both together, in a mount namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagefs import containers
from imagefs.daemon import leftovers
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps import inventory
from imagefs.deps.capture import Tree, capture_upper, is_captured
from imagefs.deps.check.consistent import check_consistent, describe_site
from imagefs.deps.check.finding import Finding
from imagefs.deps.check.outside import IGNORED, check_outside
from imagefs.deps.check.tree import Findings, Installation, check_tree
from imagefs.deps.container import trial
from imagefs.deps.container.programs import bound
from imagefs.deps.inventory import Inventory
from imagefs.deps.packed import Tried
from imagefs.deps.publish import Job
from imagefs.errors import LayerFailed
from imagefs.format.snapshot import SnapshotKind
from imagefs.plane import overlay
from imagefs.run import namespace
from imagefs.run.container import MountLayer
from imagefs.run.options import ResourceLimits, RunOptions
from imagefs.run.rootfs import RootTree
from imagefs.settings import DaemonSettings, TreeOptions, ready_folder
from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.settings import store_settings

__all__ = ["Inside", "Upper", "opened"]


class Inside(NamedTuple):
    """Where it was installed, in values that can be JSON.

    settings: fields of `DaemonSettings`. store: of the image, fields of `StoreSettings`; image: its digest; tree:
    fields of `TreeOptions`. identifier: of the attachment whose `leftovers.upper_folder` it is; held: a descriptor that
    keeps that. targets: absolute, in the container. outside: patterns of what may be written elsewhere. probe: fields
    of `RunOptions`, the container that must not fail with what was packed; none where nothing is to be tried.
    """

    settings: Mapping[str, Any]
    store: Mapping[str, Any]
    image: str
    tree: Sequence[Any]
    identifier: str
    held: int
    targets: Sequence[str]
    outside: Sequence[str] = ()
    probe: Sequence[Any] = ()


class Upper:
    """An upper directory, a `Place`. base: where the image is mounted; merged: where both are."""

    kind: SnapshotKind = "container"

    def __init__(self, job: Job, inside: Inside, upper: str, base: str, merged: str) -> None:
        self.targets = tuple(inside.targets)
        self._job, self._inside = job, inside
        self._upper, self._base, self._merged = upper, base, merged
        self._before = inventory.take(upper)

    def changed(self) -> Sequence[str]:
        return inventory.changes(self._before, inventory.take(self._upper))

    def look(self) -> tuple[Inventory, Findings]:
        job = self._job
        entries = self._before.entries
        kept = {path: facts for path, facts in entries.items() if not path or is_captured(path, self.targets)}
        seen = Inventory(self._upper, kept)
        beside = _inside(self._merged, job.beside)
        allowed = [pattern.lstrip("/") for pattern in job.allowed]
        found = check_tree(
            seen, Installation("/", job.environment, job.sites, beside, allowed, job.checked, job.tolerant, job.setuid)
        )
        outside = check_outside(self._before, self.targets, (*IGNORED, *self._inside.outside), self._base)
        items = dict.fromkeys((*found.items, *outside, *self._broken()))
        return seen, found._replace(items=tuple(items))

    def capture(self) -> Tree:
        return capture_upper(self._upper, self.targets)

    def tried(self, image: str) -> Tried:
        inside, store = self._inside, store_settings(self._job.store)
        if not inside.probe:
            return Tried("")
        options = RunOptions(*inside.probe)
        options = options._replace(limits=ResourceLimits(*options.limits))
        client, tree = Client(DaemonSettings(**inside.settings)), TreeOptions(*inside.tree)
        off = Recording(off=True)
        with containers.attached(client, store_settings(inside.store), inside.image, off, tree) as below:
            try:
                with containers.attached(client, store, image, off, tree) as packed, packed.layer() as layer:
                    return Tried(trial.failure(below, options, layer))
            except (LayerFailed, MountError) as error:
                return Tried(trial.failure(below, options, bound(self._upper)), str(error))

    def _broken(self) -> list[Finding]:
        """Requirements of packages of the image that were met before."""

        def unmet(top: str) -> list[Finding]:
            described = [one for site in _inside(top, self._job.beside) for one in describe_site(site)]
            return check_consistent(described, (), self._job.environment)

        before = set(unmet(self._base))
        found = [one for one in unmet(self._merged) if one not in before]
        return [one._replace(kind="unmet") for one in found] if self._job.tolerant else found


@contextlib.contextmanager
def opened(job: Job) -> Iterator[Upper]:
    """What the job is about, with its image. This process is in a mount namespace of its own from then on.

    After the block what was kept is gone, unless somebody else keeps it. Raises StripefsError and OSError.
    """
    inside = Inside(*job.inside)
    settings, tree = DaemonSettings(**inside.settings), TreeOptions(*inside.tree)
    client, store = Client(settings), store_settings(inside.store)
    upper = str(leftovers.upper_folder(settings.cache, inside.identifier) / "upper")
    os.set_inheritable(inside.held, False)  # else runtimes of containers kept it as well
    try:
        with containers.attached(client, store, inside.image, Recording(off=True), tree) as image:
            folder = ready_folder(settings.runtime, image.attached.id)
            with image.layer() as layer, _shown(layer, upper, folder) as (base, merged):
                yield Upper(job, inside, upper, base, merged)
    finally:
        os.close(inside.held)
        leftovers.clear(settings.cache, settings.runtime, inside.identifier)


def _inside(top: str, paths: Sequence[str]) -> list[str]:
    """Where absolute paths of a container are in its tree at `top`, whatever links lead there."""
    with RootTree(top) as tree:
        return [top + tree.real(path) for path in paths]


@contextlib.contextmanager
def _shown(layer: MountLayer, upper: str, folder: str) -> Iterator[tuple[str, str]]:
    """Where the image is, and what the container saw: below `folder`, for this process alone."""
    namespace.private_mounts()
    kernel.mount("imagefs", folder, "tmpfs", 0, "mode=700")
    try:
        base, merged = os.path.join(folder, "base"), os.path.join(folder, "merged")
        os.mkdir(base)
        os.mkdir(merged)
        layer(base)
        overlay.mount_read_only([upper, base], merged)
        yield base, merged
    finally:
        kernel.unmount(folder, kernel.MNT_DETACH)
