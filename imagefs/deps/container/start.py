"""A start in a container: what its requirements files name is installed in it, by a snapshot above the image where
there is one, by the image's own pip where not.

    hint    what the last start like this one came to: the snapshot is attached while the image is, and nobody has to
            ask the image's Python (`imagefs.deps.container.early`)
    hit     the job's container has the snapshot above its image, as one more tree of its one overlay
    miss    pip runs in a container of the image; the job's container has above its image what that wrote, at once,
            while it is checked and published

Any failure on our side ends in the installation, and one line says why. An error that a user would meet without us ends
the start: an image without Python, an installer that fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from imagefs import containers
from imagefs.containers import AttachedImage, JobRunner
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Attached, Recording
from imagefs.deps.container.early import EarlyStart, hint_name
from imagefs.deps.engine import CHANGED, PATIENCE, Miss, attach_above, hit_or_install, missed, record_hit
from imagefs.deps.key import Refusal, Request, validate_request
from imagefs.errors import LayerFailed, RunError, SnapshotError
from imagefs.format.documents import SHORT
from imagefs.run.options import RunOptions
from imagefs.run.spec import variables
from imagefs.settings import TreeOptions
from imagefs.startup.emission import events
from stripefs.errors import ConfigError, StripefsError
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.deps.container.install import ContainerInstallation
    from imagefs.deps.install import InstallOutcome
    from imagefs.deps.keybuilder import Answer
    from imagefs.deps.local import Scratch
    from imagefs.repository.snapshot_lease import InstallLease
    from imagefs.run.container import MountLayer

__all__ = ["ContainerRequest", "key_answer", "run"]


class ContainerRequest(NamedTuple):
    """The request of packages above an image.

    store: of dependency snapshots. key_request: what decides the key, without what the image says: its targets, of
    which there is none where the interpreter's own place is meant, its command, and the image. files: requirements
    files, absolute. outside: patterns of what may be written outside the targets. resolve_age: seconds for which what
    they were resolved to is believed. wait, patience, checked, allowed, tolerant, setuid: as in
    `imagefs.deps.host.HostRequest`.
    """

    store: StoreSettings
    key_request: Request
    files: Sequence[str]
    outside: Sequence[str] = ()
    wait: bool = False
    patience: float = 600.0
    resolve_age: float = 3600.0
    checked: bool = False
    allowed: Sequence[str] = ()
    tolerant: bool = False
    setuid: bool = False
    probe: str = ""


def run(
    client: Client,
    store: StoreSettings,
    image: str,
    options: RunOptions,
    tree: TreeOptions,
    recording: Recording,
    request: ContainerRequest,
    tell: Callable[[str], None],
    job: JobRunner = containers.run_job,
) -> int:
    """Run a container from the image of this tag or digest, with what is wanted above it; the exit status of its
    command, or of the installer where that fails. `tell` gets the lines for people. job: runs that container.

    Raises ConfigError for a request that no key can be made of, and what `imagefs.containers.run` raises.
    """
    early = _early(client, image, options, tree, request)
    first = early.begin if early is not None else None
    with containers.attached(client, store, image, recording, tree, options.runtime, first, _load) as found:
        from imagefs.deps.local import Scratch  # which is loaded by now

        with Scratch() as scratch:
            return _ContainerStart(store, found, options, request, tell, scratch, early).run(job)


def _load() -> None:
    """Load what makes the key, which takes as long as the daemon needs for the image."""
    from imagefs.deps.container import keybuilder  # noqa: F401


def _early(
    client: Client, image: str, options: RunOptions, tree: TreeOptions, request: ContainerRequest
) -> EarlyStart | None:
    """None for a request of which something cannot be read, as the start will find out, and where a process is forked
    to copy the image, beside which there is to be no thread."""
    if tree.unpack:
        return None
    environ = variables((), options.env, os.environ)
    try:
        name = hint_name(image, request.key_request, request.files, environ)
    except (ConfigError, OSError):
        return None
    return EarlyStart(client, request.store, name, shares=tree.shares)


def key_answer(
    client: Client, store: StoreSettings, image: str, options: RunOptions, tree: TreeOptions, request: ContainerRequest
) -> Answer:
    """The answer about the key of such a start; nothing is installed. Raises ConfigError, and what `run` raises."""
    from imagefs.deps.container.keybuilder import KeyBuilder
    from imagefs.deps.local import Scratch

    off = Recording(off=True)
    with containers.attached(client, store, image, off, tree, options.runtime) as found, Scratch() as scratch:
        key = KeyBuilder(found, options, request, scratch, None, make=False)
        return key.answer(key.known())


class _Failed(Exception):
    """The installer did."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the installer ended with status {status}")
        self.status = status


class _ContainerStart:
    def __init__(
        self,
        store: StoreSettings,
        image: AttachedImage,
        options: RunOptions,
        request: ContainerRequest,
        tell: Callable[[str], None],
        scratch: Scratch,
        early: EarlyStart | None,
    ) -> None:
        from imagefs.deps.container.keybuilder import KeyBuilder  # which `_load` has loaded

        self._store = store
        self._image = image
        self._options = options
        self._request = request
        self._tell = tell
        self._scratch = scratch
        self._key = KeyBuilder(image, options, request, scratch, early)
        self._used: contextlib.ExitStack
        self._answer: Answer
        self._targets: list[str] = []
        self._name = ""
        self._packages: str | None = None  # once what the key stands for is there
        self._is_hit = False

    def run(self, job: JobRunner) -> int:
        with contextlib.ExitStack() as self._used:
            try:
                return self._with(self._layer(), job)
            except _Failed as failed:
                return failed.status

    def _with(self, layer: MountLayer, job: JobRunner) -> int:
        """Run the job's container with this above the image."""
        self._scratch.remove()  # the job may take days
        try:
            return job(self._image, self._options, [layer], self._packages)
        except LayerFailed as error:
            if error.number or not self._is_hit:
                raise
            reason, self._is_hit = str(error), False
            if self._key.hinted:
                return self._with(self._known_layer(lambda: self._install(reason, None)), job)
            return self._with(self._install(reason, None), job)

    def _layer(self) -> MountLayer:
        """The layer above the image of the job's container. Raises _Failed, and RunError for what users meet."""
        request = self._request
        return self._hinted_layer() or self._known_layer(
            lambda: hit_or_install(request.store, self._name, request.patience, self._hit, self._install, self._tell)
        )

    def _hinted_layer(self) -> MountLayer | None:
        """The snapshot under the key that a hint leads to; None where there is none, which is not reported."""
        try:
            with events().begin("dependencies", "resolve"):
                if (known := self._key.hint()) is None:
                    return None
                self._answer = self._key.answer(known)
        except (StripefsError, OSError):
            return None  # once the interpreter is asked all of this is done again, and people see why
        if isinstance(self._answer.found, Refusal):
            return None
        self._targets = [target.path for target in self._key.request.targets]
        self._name = self._answer.found.digest
        found = record_hit(self._name, self._hit)
        return None if isinstance(found, Miss) else found

    def _known_layer(self, layer: Callable[[], MountLayer]) -> MountLayer:
        """`layer()`, once the interpreter's own word has led to the key; what is installed without a key where there is
        none. Raises as `_layer` does."""
        unread = [*self._request.files, *self._request.key_request.inputs]
        try:
            with events().begin("dependencies", "resolve"):
                known = self._key.known()
        except (StripefsError, OSError) as error:
            return self._without(str(error), unread)
        self._targets = [target.path for target in validate_request(self._key.request).targets]
        try:
            with events().begin("dependencies", "resolve"):
                self._answer = self._key.answer(known)
        except (StripefsError, OSError) as error:
            return self._without(str(error), unread)
        if isinstance(self._answer.found, Refusal):
            return self._without(self._answer.found.reason, self._answer.paths)
        self._name = self._answer.found.digest
        try:
            return layer()
        except RunError:
            raise
        except (StripefsError, OSError) as error:
            return self._without(str(error), self._answer.paths)

    # Hit

    def _hit(self) -> MountLayer | Miss:
        request, image = self._request, self._image
        found = attach_above(image, request.store, self._name, self._attach, self._used, self._key.end_early)
        if isinstance(found, Miss):
            return found
        try:
            if request.probe and (failed := self._failure(found.layer)):
                return Miss(f"the probe failed: {failed}", absent=False)
        except (StripefsError, OSError) as error:
            return missed(error)
        self._tell(f"hit {self._name[:SHORT]}: above the image ({found.answered * 1000:.0f} ms)")
        self._is_hit = True
        self._packages = self._name
        return found.layer

    def _attach(self) -> Attached | None:
        if (found := self._key.attached(self._name)) is not None:
            return found
        image, hint = self._image, self._key.hint_for(self._answer, self._name)
        return image.client.attach_layer(
            self._request.store, self._name, image.recording, timeout=PATIENCE, shares=image.tree.shares, hint=hint
        )

    def _failure(self, layer: MountLayer) -> str:
        from imagefs.deps.container import programs

        return programs.probe_failure(self._image, self._trial(), layer)

    def _trial(self) -> RunOptions:
        from imagefs.deps.container import programs

        targets = [target.path for target in self._request.key_request.targets]
        return programs.probe_options(self._options, self._key.python, self._request.probe, targets)

    # Miss

    def _install(self, reason: str, lease: InstallLease | None) -> MountLayer:
        self._tell(f"miss {self._name[:SHORT]}: {reason}; installing in a container")
        self._packages = None
        installation = self._installation()
        with events().begin("dependencies", "install", key=self._name):
            done, broken = self._run(installation)
        if done.status:
            failed = _Failed(done.status)
            self._tell(f"{failed}, so nothing is kept")
            raise failed
        try:
            self._keep(installation, done, broken, lease)
            self._packages = self._name
        except (StripefsError, OSError) as error:
            self._tell(f"snapshot {self._name[:SHORT]} is not published: {error}")
            if lease is not None:
                lease.give_up(str(error))
        return installation.layer()

    def _run(self, installation: ContainerInstallation) -> tuple[InstallOutcome, str]:
        """The end of pip, and the reason why it did not do what was resolved before."""
        from imagefs.deps.install import run_held

        answer = self._answer
        return run_held(
            answer.locked_install,
            lambda locked: installation.run_locked(locked, answer.paths),
            lambda: installation.run(self._key.command, answer.paths, compiles=False),
            lambda: self._key.locks.forget(answer.locked_as),
            self._tell,
        )

    def _keep(
        self, installation: ContainerInstallation, done: InstallOutcome, broken: str, lease: InstallLease | None
    ) -> None:
        """Raises StripefsError and OSError."""
        from imagefs.deps import publications
        from imagefs.deps.container.install import Inside
        from imagefs.deps.publish import job_of

        request, image, answer = self._request, self._image, self._answer
        try:
            failed = installation.compile(self._targets, "checked" if request.checked else "unchecked")
        except RunError as error:
            raise SnapshotError(error.message) from error
        if broken or not self._key.unchanged(answer):
            raise SnapshotError(broken or CHANGED)
        python = answer.facts.python
        if lease is None or not lease.may_publish or python is None or isinstance(answer.found, Refusal):
            return
        settings, tree = image.client.settings, image.tree
        identifier = image.attached.id
        inside = Inside(
            settings._asdict(), self._store._asdict(), image.attached.image, tree, identifier, image.held,
            self._targets, request.outside, self._trial() if request.probe else (),
        )  # fmt: skip
        job = job_of(request, settings, answer.found.to_document(), self._targets[0], done, failed, lease)._replace(
            environment=python.markers,
            sites=[target.path.strip("/") for target in request.key_request.targets],
            beside=python.sites,
            lock=answer.lock.to_document() if answer.lock is not None else None,
            inside=inside,
            wheels=answer.wheels,
            hint=self._key.hint_for(answer, self._name) or (),
        )
        with publications.publish_beside(job, self._tell, wait=request.wait, held=[image.held]):
            pass

    def _without(self, reason: str, paths: Sequence[str]) -> MountLayer:
        self._tell(f"{reason}; installing without a snapshot")
        events().instant("dependencies", "miss")
        installation = self._installation()
        with events().begin("dependencies", "install"):
            done = installation.run(self._key.command, paths, compiles=True)
        if done.status:
            raise _Failed(done.status)
        return installation.layer()

    def _installation(self) -> ContainerInstallation:
        self._key.end_early()
        with contextlib.suppress(StripefsError):  # a trace of pip would do little harm
            self._image.client.unrecord(self._image.attached.id, "what it needs was installed first")
        from imagefs.deps.container.install import ContainerInstallation  # not needed by most, who find what they want

        if self._key.managed:
            self._tell(
                "the image's Python is managed by its system (PEP 668), so pip has --break-system-packages: the image "
                "itself stays as it is"
            )
        return ContainerInstallation(self._image, self._options, self._key.of_pip, self._key.python, self._scratch)
