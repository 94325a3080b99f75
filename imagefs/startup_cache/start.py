"""A job's container with the start-up caches of earlier starts, or with empty ones that are published.

    hit     the snapshot's caches are mounted at FOLDER, below a place to write that ends with the container
    miss    FOLDER is an empty directory; when the job says that it is ready, a process publishes what is there

Nothing here keeps a job from running: without a snapshot, a store or a mount it compiles as always, and one line says
why. A hit publishes nothing, and a miss waits for nobody: of several containers that compile the same the first one
publishes (`imagefs.repository.snapshot_lease`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from imagefs import containers
from imagefs.containers import AttachedImage, JobRunner
from imagefs.daemon.protocol import Attached, Recording
from imagefs.deps.engine import Miss, attach_above
from imagefs.deps.publish import PublishJob as Publication
from imagefs.errors import RunError
from imagefs.format.documents import SHORT, key_digest
from imagefs.plane import kernel_mounts
from imagefs.run.container import MountLayer
from imagefs.run.options import ImageConfig, RunOptions
from imagefs.run.spec import PATH, arguments, variables
from imagefs.startup.emission import events
from imagefs.startup_cache import key
from imagefs.startup_cache.key import FOLDER, Cache, CacheJob
from imagefs.startup_cache.publisher import Publishing
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings

__all__ = ["runner"]

_PATIENCE = 10.0
"""Seconds for a store to give the documents of a snapshot: to compile may take hardly longer."""

_MS_BIND = 4096


def runner(
    names: str, salt: str, store: StoreSettings, options: RunOptions, recording: Recording, tell: Callable[[str], None]
) -> JobRunner:
    """Runs a job with these start-up caches, `auto` or names with commas between them.

    salt: tells jobs apart that the key does not. store: of snapshots. options, recording: those of the job. `tell` gets
    the lines for people. Raises RunError for what cannot be.
    """
    caches = key.parse(names)
    refused = {
        "--startup-cache needs root: caches keep the owners of their files; sudo": os.geteuid() != 0,
        "--userns and --startup-cache do not go together: files would be of one namespace's users": options.first_id,
        "--ready-file and --startup-cache do not go together: $IMAGEFS_READY says when caches are full":
            recording.ready_file,
    }  # fmt: skip
    if reasons := [reason for reason, holds in refused.items() if holds]:
        raise RunError(reasons[0])

    def run(image: AttachedImage, options: RunOptions, above: Sequence[MountLayer], packages: str | None) -> int:
        config = ImageConfig.parse(image.attached.config)
        environ = variables((PATH, *config.env), options.env, os.environ)
        ours = [one for one in caches if one.variable not in environ]
        if taken := [one.variable for one in caches if one not in ours]:
            tell(f"start-up caches that are placed already are left alone: {', '.join(taken)}")
        folder = os.path.join(image.attached.upper, "caches")
        try:
            if not ours or packages is None:
                raise RunError("nobody knows which packages are installed" if ours else "none is left")
            kernel_mounts.lasting_upper(image.attached.upper)
            _make_folders(folder, ours)
        except (StripefsError, OSError) as error:
            tell(f"start-up caches are not used: {error}")
            return containers.run_job(image, options, above, packages)
        words, user = arguments(options, config), options.user or config.user
        job = CacheJob(image.attached.base, packages, words, user, environ, key.world_size(environ, os.environ), salt)
        start = _CacheStart(image, store, key.document(ours, job, key.node_facts()), folder, tell)
        return start.run(options._replace(env=[*key.environment(ours, environ), *options.env]), above)

    return run


def _make_folders(folder: str, caches: Sequence[Cache]) -> None:
    """The place where the container writes; anybody in it may, as in /tmp. Raises OSError."""
    for path in ("upper", *(f"upper/{cache.name}" for cache in caches)):
        os.makedirs(os.path.join(folder, path))
        os.chmod(os.path.join(folder, path), 0o1777)  # noqa: S103


class _CacheStart:
    def __init__(
        self, image: AttachedImage, store: StoreSettings, key: Any, folder: str, tell: Callable[[str], None]
    ) -> None:
        self._image, self._store, self._key, self._folder, self._tell = image, store, key, folder, tell
        self._name = key_digest(key)

    def run(self, options: RunOptions, above: Sequence[MountLayer]) -> int:
        with contextlib.ExitStack() as used:
            found = self._hit(used)
            if not isinstance(found, Miss):
                beside = {FOLDER: lambda target: self._show(target, found)}
                # The command may say that it is ready at each start, as it did at the first.
                return self._image.run(options, above, marked=True, beside=beside, on_ready=lambda: None)
            self._say("miss", f"{found.reason}; the job compiles, and its caches are kept when it is ready")
            store, settings = self._store._asdict(), self._image.client.settings
            job = Publication(
                store=store,
                cache=settings.cache,
                key=self._key,
                target=FOLDER,
                seconds=0.0,
                damaged=found.damaged,
                compression=settings.compression,
            )
            publishing = Publishing(job, f"{self._folder}/upper", f"{self._folder}/copy", self._tell)
            beside, status = {FOLDER: self._show_empty}, 1
            try:
                status = self._image.run(options, above, marked=True, beside=beside, on_ready=publishing.begin)
            finally:
                publishing.end(failed=status != 0)
            return status

    def _hit(self, used: contextlib.ExitStack) -> MountLayer | Miss:
        image, store, shares = self._image, self._store, self._image.tree.shares

        def attach() -> Attached | None:
            return image.client.attach_layer(store, self._name, image.recording, timeout=_PATIENCE, shares=shares)

        found = attach_above(image, store, self._name, attach, used)
        if isinstance(found, Miss):
            return found
        self._say("hit", f"start-up caches are mounted ({found.answered * 1000:.0f} ms)")
        return found.layer

    def _say(self, name: str, line: str) -> None:
        self._tell(f"{name} {self._name[:SHORT]}: {line}")
        events().instant("compile", name, key=self._name)

    def _show(self, target: str, layer: MountLayer) -> None:
        """Called in the container's mount namespace, as `_show_empty` is."""
        try:
            layer(target)
            kernel_mounts.mount_overlay([target], self._folder, target, volatile=True)
        except (StripefsError, OSError) as error:
            self._tell(f"the start-up caches cannot be mounted, so the job compiles: {error}")
            self._show_empty(target)

    def _show_empty(self, target: str) -> None:
        kernel.mount(f"{self._folder}/upper", target, "", _MS_BIND, "")
