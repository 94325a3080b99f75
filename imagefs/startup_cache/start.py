"""A job's container with the start-up caches of earlier starts, or with empty ones that are published.

    hit     the snapshot's caches are mounted at FOLDER, below a place to write that ends with the container
    miss    FOLDER is an empty directory; when the job says that it is ready, a process publishes what is there

Nothing here keeps a job from running: without a snapshot, a store or a mount it compiles as always, and one line says
why. The process that publishes ends with the run: when the job has failed at once, else in a moment.

A hit publishes nothing, and a node does not wait for another one that compiles the same: of several that miss at once
the first publishes, as the lead of `imagefs.deps.lease` has it. Ranks in one container share its caches.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from imagefs import containers
from imagefs.containers import Image, JobRunner
from imagefs.daemon.client import Recording
from imagefs.deps import outcome
from imagefs.deps.course import SHORT, Missed, absent, missed
from imagefs.deps.publish import Job as Publication
from imagefs.deps.threads import signals_for_main
from imagefs.deps.use import check_whole
from imagefs.errors import RunError
from imagefs.format.snapshot import key_digest
from imagefs.plane import overlay
from imagefs.run.container import Layer
from imagefs.run.image_config import ImageConfig
from imagefs.run.options import RunOptions
from imagefs.run.spec import PATH, arguments, variables
from imagefs.startup_cache import node, table
from imagefs.startup_cache.key import Job, document, world_size
from imagefs.startup_cache.table import FOLDER, Cache
from stripefs.errors import StripefsError
from stripefs.mount import kernel
from stripefs.settings import StoreSettings
from stripefs.startup_events import default_writer

__all__ = ["Wish", "asked", "runner"]

_PATIENCE = 10.0
"""Seconds for a store to give the documents of a snapshot: to compile may take hardly longer."""

_GRACE = 10.0
"""Seconds that publishing may go on after a job that ended well."""

_ENDS_WITHIN = 5.0
"""Seconds for the process that publishes to take back what it has not published."""

_MS_BIND = 4096


class Wish(NamedTuple):
    """store: of snapshots. caches: those that are wanted. salt: tells jobs apart that the key does not."""

    store: StoreSettings
    caches: Sequence[Cache]
    salt: str = ""


def asked(text: str, salt: str, store: StoreSettings, options: RunOptions, recording: Recording) -> Wish:
    """The wish for `auto`, or for caches by name with commas between them. Raises RunError for what cannot be."""
    if os.geteuid() != 0:
        raise RunError("--startup-cache needs root: caches keep the owners of their files", hint="sudo")
    if options.first_id:
        raise RunError(
            "--userns and --startup-cache do not go together: files would belong to users of one namespace",
            hint="--userns host",
        )
    if recording.ready_file:
        raise RunError(
            "--ready-file and --startup-cache do not go together: caches are taken when the job creates $IMAGEFS_READY",
            hint="leave --ready-file out",
        )
    return Wish(store, table.parse(text), salt)


def runner(wish: Wish, tell: Callable[[str], None]) -> JobRunner:
    """Runs a job with these caches. `tell` gets the lines for people."""

    def run(image: Image, options: RunOptions, above: Sequence[Layer], packages: str | None) -> int:
        return _Start(wish, tell, image, options, packages).run(above)

    return run


class _Start:
    def __init__(
        self, wish: Wish, tell: Callable[[str], None], image: Image, options: RunOptions, packages: str | None
    ) -> None:
        self._wish, self._tell, self._image, self._options, self._packages = wish, tell, image, options, packages
        self._config = ImageConfig.parse(image.attached.config)
        self._environ = variables((PATH, *self._config.env), options.env, os.environ)
        taken = table.placed_elsewhere(wish.caches, self._environ)
        self._caches = [one for one in wish.caches if one not in taken]
        for one in taken:
            tell(f"the start-up cache {one.name} is left alone: {one.variable} is set already")
        self._folder = os.path.join(image.attached.upper, "caches")

    def run(self, above: Sequence[Layer]) -> int:
        if not self._caches:
            return containers.run_job(self._image, self._options, above, self._packages)
        if self._packages is None:
            self._tell("start-up caches are not used: nobody knows which packages are installed")
            return containers.run_job(self._image, self._options, above, None)
        key = self._key()
        try:
            overlay.lasting(self._image.attached.upper)
            self._make_folders()
        except OSError as error:
            self._tell(f"start-up caches are not used: {error}")
            return containers.run_job(self._image, self._options, above, self._packages)
        with contextlib.ExitStack() as used:
            found = self._hit(key, used)
            publishing = None
            if isinstance(found, Missed):
                self._say("miss", key, f"{found.reason}; the job compiles, and its caches are kept when it is ready")
                publishing = _Publishing(self._publication(key, found), self._folder, self._tell)
            layer = None if isinstance(found, Missed) else found
            status = 1
            try:
                status = self._image.run(
                    self._options._replace(env=[*table.environment(self._caches, self._environ), *self._options.env]),
                    above,
                    marked=True,
                    beside={FOLDER: lambda target: self._show(target, layer)},
                    on_ready=publishing.begin if publishing else None,
                )
            finally:
                if publishing:
                    publishing.end(failed=status != 0)
            return status

    def _key(self) -> dict[str, object]:
        options, image = self._options, self._image.attached
        job = Job(
            image.base,
            self._packages or "",
            arguments(options, self._config),
            options.user or self._config.user,
            self._environ,
            world_size(self._environ, os.environ),
            self._wish.salt,
        )
        return document(self._caches, job, node.facts())

    def _say(self, name: str, key: dict[str, object], line: str) -> None:
        digest = key_digest(key)
        self._tell(f"{name} {digest[:SHORT]}: {line}")
        with signals_for_main():
            default_writer("imagefs").instant("compile", name, key=digest)

    # Hit

    def _hit(self, key: dict[str, object], used: contextlib.ExitStack) -> Layer | Missed:
        image, store, name = self._image, self._wish.store, key_digest(key)
        client = image.client
        try:
            begun = time.monotonic()
            found = client.use_above(store, name, image.recording, timeout=_PATIENCE, shares=image.tree.shares)
            answered = time.monotonic() - begun
            if found is None:
                return absent(store, client.settings.cache, name)
            used.callback(containers.let_go, client, found)
            check_whole(found)
            layer = used.enter_context(containers.layer_of(client, found, image.tree, f"deps/{name}"))
        except (StripefsError, OSError) as error:
            return missed(error)
        names = ", ".join(cache.name for cache in self._caches)
        self._say("hit", key, f"start-up caches of {names} ({answered * 1000:.0f} ms)")
        return layer

    # The container

    def _make_folders(self) -> None:
        """The place where the container writes; anybody in it may, as in /tmp. Raises OSError."""
        upper = os.path.join(self._folder, "upper")
        for path in (upper, *(os.path.join(upper, cache.name) for cache in self._caches)):
            os.makedirs(path)
            os.chmod(path, 0o1777)  # noqa: S103

    def _show(self, target: str, layer: Layer | None) -> None:
        """Called in the container's mount namespace."""
        if layer is not None:
            try:
                layer(target)
                overlay.mount([target], self._folder, target, volatile=True)
                return
            except (StripefsError, OSError) as error:
                self._tell(f"the start-up caches cannot be mounted, so the job compiles: {error}")
        kernel.mount(os.path.join(self._folder, "upper"), target, "", _MS_BIND, "")

    # Miss

    def _publication(self, key: dict[str, object], found: Missed) -> Publication:
        cache = self._image.client.settings.cache
        return Publication(self._wish.store._asdict(), cache, key, FOLDER, 0.0, doubted=found.doubted)


class _Publishing:
    """The process that publishes (`imagefs.startup_cache.publisher`), once the job is ready."""

    def __init__(self, publication: Publication, folder: str, tell: Callable[[str], None]) -> None:
        self._publication, self._folder, self._tell = publication, folder, tell
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Called on a thread of its own, which the run waits for before it ends."""
        job = self._publication
        wish = {"job": job._asdict(), "folder": f"{self._folder}/upper", "copy": f"{self._folder}/copy"}
        try:
            with open(outcome.log_of(job.cache, job.name), "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "imagefs.startup_cache.publisher"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                    cwd="/",
                )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(wish).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._tell(f"the start-up caches are not published: {error}")

    def end(self, *, failed: bool) -> None:
        """Wait for what goes on, in a moment; give up what does not end."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if failed else _GRACE)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        told = outcome.log_of(self._publication.cache, self._publication.name).read_text(errors="replace")
        for line in told.splitlines() or ["the start-up caches are not published: the run has ended"]:
            self._tell(line.removeprefix("imagefs: "))
