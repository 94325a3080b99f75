"""A start in a container: what its requirements files name is installed in it, by a snapshot above the image where
there is one, by the image's own pip where not.

    hit     the job's container has the snapshot above its image, as one more tree of its one overlay
    miss    pip runs in a container of the image; the job's container has above its image what that wrote, at once,
            while it is checked and published

Whatever goes wrong on our side ends in the installation, and one line says why. What a user would meet without us ends
the start: an image without Python, an installer that fails.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from imagefs import containers
from imagefs.containers import Image, JobRunner
from imagefs.daemon.client import Client, Recording
from imagefs.deps.asking import Answer, ask, unchanged
from imagefs.deps.container import trial
from imagefs.deps.container.programs import DOWNLOADS, given, inside, output_of, shown
from imagefs.deps.container.python import facts_of
from imagefs.deps.course import CHANGED, SHORT, Missed, absent, found_or_installed, missed
from imagefs.deps.request import Facts, Refusal, Request, Target, checked
from imagefs.deps.resolve import QUIET, Locks
from imagefs.deps.resolver import Question
from imagefs.deps.scratch import Scratch
from imagefs.deps.use import PATIENCE, check_whole
from imagefs.errors import LayerFailed, RunError, SnapshotError
from imagefs.plane.options import TreeOptions
from imagefs.run.container import Layer
from imagefs.run.image_config import ImageConfig
from imagefs.run.options import Bind, RunOptions
from imagefs.run.spec import PATH, own_mount, variables
from imagefs.startup.emission import events
from stripefs.errors import ConfigError, StripefsError
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.deps.container.installing import Installation
    from imagefs.deps.install import Outcome
    from imagefs.deps.lease import Leading
    from imagefs.deps.local import Order, Wheel

__all__ = ["Wish", "asked", "run"]

_WHEELS = "/run/imagefs-wheels"
"""Where the containers that build have the directory for what they build."""


class Wish(NamedTuple):
    """What is wanted above an image.

    store: of dependency snapshots. request: what decides the key, without what the image says: its targets, of which
    there is none where the interpreter's own place is meant, its command, and the image. files: requirements files,
    absolute. outside: patterns of what may be written outside the targets. resolve_age: seconds for which what they
    were resolved to is believed. wait, patience, checked, allowed, tolerant, setuid: as in `imagefs.deps.wish.Wish`.
    """

    store: StoreSettings
    request: Request
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
    wish: Wish,
    tell: Callable[[str], None],
    job: JobRunner = containers.run_job,
) -> int:
    """Run a container from the image of this tag or digest, with what is wanted above it; the exit status of its
    command, or of the installer where that fails. `tell` gets the lines for people. job: runs that container.

    Raises ConfigError for a request that no key can be made of, and what `imagefs.containers.run` raises.
    """
    with containers.attached(client, store, image, recording, tree, options.runtime) as found, Scratch() as scratch:
        return _Start(store, found, options, wish, tell, scratch).run(job)


def asked(
    client: Client, store: StoreSettings, image: str, options: RunOptions, tree: TreeOptions, wish: Wish
) -> Answer:
    """What decides the key of such a start; nothing is installed. Raises ConfigError, and what `run` raises."""
    off = Recording(off=True)
    with containers.attached(client, store, image, off, tree, options.runtime) as found, Scratch() as scratch:
        one = _Start(store, found, options, wish, lambda _line: None, scratch, make=False)
        return one.asked(one.known())


def _local(words: Sequence[str]) -> list[str]:
    """The paths of the host among options."""
    return [word for word in words if word.startswith("/") and os.path.exists(word)]


class _Failed(Exception):
    """The installer did."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the installer ended with status {status}")
        self.status = status


class _Start:
    def __init__(
        self,
        store: StoreSettings,
        image: Image,
        options: RunOptions,
        wish: Wish,
        tell: Callable[[str], None],
        scratch: Scratch,
        *,
        make: bool = True,
    ) -> None:
        self._store = store
        self._image = image
        self._options = options
        self._wish = wish
        self._tell = tell
        self._scratch = scratch
        config = ImageConfig.parse(image.attached.config)
        for target in wish.request.targets:
            if own := own_mount(target.path, config):
                raise ConfigError(
                    f"what is installed in {target.path} would not be seen: each container has a file system of its own"
                    f" at {own}",
                    hint="name another --deps-target",
                )
        self._environ = variables((PATH, *config.env), options.env, os.environ)
        # Files of this host, such as its pip.conf, are none of the container's.
        self._asking = {**self._environ, "PIP_CONFIG_FILE": os.devnull}
        self._python = wish.request.python or "python3"
        self._locks = Locks(image.client.settings.cache, wish.store, wish.resolve_age, self._resolve, make=make)
        self._used: contextlib.ExitStack
        self._answer: Answer
        self._unchanged: Callable[[], bool]
        self._targets: list[str] = []
        self._name = ""
        self._packages: str | None = None  # once what the key stands for is there
        self._is_managed = False
        self._is_hit = False

    def run(self, job: JobRunner) -> int:
        with contextlib.ExitStack() as self._used:
            try:
                return self._with(self._layer(), job)
            except _Failed as failed:
                return failed.status

    def _with(self, layer: Layer, job: JobRunner) -> int:
        """Run the job's container with this above the image."""
        self._scratch.remove()  # the job may take days
        try:
            return job(self._image, self._options, [layer], self._packages)
        except LayerFailed as error:
            if error.number or not self._is_hit:
                raise
            self._is_hit = False
            return self._with(self._install(str(error), None), job)

    def _layer(self) -> Layer:
        """What lies above the image of the job's container. Raises _Failed, and RunError for what users meet."""
        wish, unread = self._wish, [*self._wish.files, *self._wish.request.inputs]
        try:
            with events().begin("dependencies", "resolve"):
                known = self.known()
        except (StripefsError, OSError) as error:
            return self._without(str(error), unread)
        request = checked(self._request(known))
        self._targets = [target.path for target in request.targets]
        try:
            with events().begin("dependencies", "resolve"):
                self._answer = self.asked(known)
        except (StripefsError, OSError) as error:
            return self._without(str(error), unread)
        if isinstance(self._answer.found, Refusal):
            return self._without(self._answer.found.reason, self._answer.paths)
        self._name = self._answer.found.digest
        self._unchanged = partial(unchanged, request, self._answer, self._asking)
        try:
            return found_or_installed(wish.store, self._name, wish.patience, self._hit, self._install, self._tell)
        except RunError:
            raise
        except (StripefsError, OSError) as error:
            return self._without(str(error), self._answer.paths)

    def known(self) -> Facts:
        """What the image's interpreter says of itself. Raises StripefsError, OSError."""
        search, level = self._environ.get("PATH", ""), self._wish.request.cpu_level
        known = facts_of(self._image, self._options, search, self._python, level)
        self._is_managed = known.python is not None and known.python.managed and not self._wish.request.targets
        return known

    def asked(self, known: Facts) -> Answer:
        """The key, or why there is none. Raises ConfigError, OSError."""
        return ask(self._request(known), self._locks, self._asking, known, self._build, lambda: DOWNLOADS)

    def _build(self, order: Order, environ: Mapping[str, str]) -> Mapping[str, Wheel]:
        """What the image's pip makes of directories of the host, in a container that goes afterwards. pip writes beside
        the sources there, as it does when it installs. Raises SnapshotError, OSError."""
        from imagefs.deps.local import read_wheel, wheel_in

        found = {}
        with tempfile.TemporaryDirectory(prefix="imagefs-wheels-") as folder:
            for number, source in enumerate(order.sources):
                out = os.path.join(folder, str(number))
                os.mkdir(out)
                binds = [*shown([source, *_local(order.more)]), self._downloads()]
                options = inside(self._options, order.command(source, _WHEELS))._replace(
                    binds=[*binds, Bind(out, _WHEELS)], env=given(self._environ), workdir=order.folder, writable=True
                )
                try:
                    output_of(self._image.run, options)
                except (ConfigError, RunError) as error:
                    raise SnapshotError(f"{source} cannot be built to a wheel: {error.message}") from error
                wheel = wheel_in(out, source)
                found[source] = read_wheel(wheel)
                self._scratch.keep(source, wheel)
        return found

    def _resolve(self, question: Question, folder: str, _environ: Mapping[str, str], paths: Sequence[str]) -> str:
        """What pip prints in a container like the job's, which goes afterwards. Raises SnapshotError."""
        binds = [*shown(paths, self._scratch.seen), self._downloads()]
        options = inside(self._options, question.command)._replace(
            binds=binds, env=given({**self._of_pip, **QUIET}), workdir=folder, writable=True
        )
        try:
            return output_of(self._image.run, options)
        except (ConfigError, RunError) as error:
            raise SnapshotError(f"what is asked for could not be resolved: {error.message}") from error

    def _downloads(self) -> Bind:
        return Bind(self._scratch.downloads(), DOWNLOADS)

    def _request(self, known: Facts) -> Request:
        request, python = self._wish.request, known.python
        targets = request.targets or [Target(python.installs if python is not None else "", 0, 0)]
        base = self._image.attached.base
        return request._replace(targets=targets, command=self._command(), python=self._python, base_image=base)

    def _command(self) -> list[str]:
        into = [word for target in self._wish.request.targets for word in ("--target", target.path)]
        files = [word for file in self._wish.files for word in ("-r", file)]
        return [self._python, "-m", "pip", "install", *into, *files]

    # Hit

    def _hit(self) -> Layer | Missed:
        client, wish, image = self._image.client, self._wish, self._image
        try:
            begun = time.monotonic()
            shares = image.tree.shares
            found = client.use_above(wish.store, self._name, image.recording, timeout=PATIENCE, shares=shares)
            answered = time.monotonic() - begun
            if found is None:
                return absent(wish.store, client.settings.cache, self._name)
            self._used.callback(containers.let_go, client, found)
            check_whole(found)
            layer = self._used.enter_context(containers.layer_of(client, found, image.tree, f"deps/{self._name}"))
            if wish.probe and (failed := trial.failure(image, self._trial(), layer)):
                return Missed(f"the probe failed: {failed}", absent=False)
        except (StripefsError, OSError) as error:
            return missed(error)
        self._tell(f"hit {self._name[:SHORT]}: above the image ({answered * 1000:.0f} ms)")
        self._is_hit = True
        self._packages = self._name
        return layer

    def _trial(self) -> RunOptions:
        targets = [target.path for target in self._wish.request.targets]
        return trial.options_for(self._options, self._python, self._wish.probe, targets)

    # Miss

    def _install(self, reason: str, leading: Leading | None) -> Layer:
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
            self._keep(installation, done, broken, leading)
            self._packages = self._name
        except (StripefsError, OSError) as error:
            self._tell(f"snapshot {self._name[:SHORT]} is not published: {error}")
            if leading is not None:
                leading.give_up(str(error))
        return installation.layer()

    def _run(self, installation: Installation) -> tuple[Outcome, str]:
        """How pip ended, and why it did not do what was resolved before."""
        from imagefs.deps.miss import BY_SIGNAL, RESOLVED_EARLIER, UNHELD

        answer, unheld = self._answer, ""
        if answer.held is not None:
            done, broken = installation.run_held(answer.held, answer.paths)
            if not done.status or not answer.held.cached or done.status >= BY_SIGNAL:
                return done, broken
            self._locks.forget(answer.locked_as)
            self._tell(RESOLVED_EARLIER)
            unheld = UNHELD
        return installation.run(self._command(), answer.paths, compiles=False), unheld

    def _keep(self, installation: Installation, done: Outcome, broken: str, leading: Leading | None) -> None:
        """Raises StripefsError and OSError."""
        from imagefs.deps.container.upper import Inside
        from imagefs.deps.miss import course_findings, publish_beside
        from imagefs.deps.publish import Job

        wish, image, answer = self._wish, self._image, self._answer
        try:
            failed = installation.compile(self._targets, "checked" if wish.checked else "unchecked")
        except RunError as error:
            raise SnapshotError(error.message) from error
        if broken or not self._unchanged():
            raise SnapshotError(broken or CHANGED)
        python = answer.facts.python
        if leading is None or not leading.may_publish or python is None or isinstance(answer.found, Refusal):
            return
        settings, tree = image.client.settings, image.tree
        identifier = image.attached.id
        inside = Inside(
            settings._asdict(), self._store._asdict(), image.attached.image, tree, identifier, image.held,
            self._targets, wish.outside, self._trial() if wish.probe else (),
        )  # fmt: skip
        job = Job(
            wish.store._asdict(),
            settings.cache,
            answer.found.to_document(),
            self._targets[0],
            done.seconds,
            course_findings(done, failed),
            python.markers,
            [target.path.strip("/") for target in wish.request.targets],
            python.sites,
            wish.allowed,
            wish.checked,
            leading.hand_over(),
            answer.lock.to_document() if answer.lock is not None else None,
            wish.tolerant,
            inside,
            setuid=wish.setuid,
            wheels=answer.wheels,
            doubted=leading.doubted,
        )
        with publish_beside(job, self._tell, wait=wish.wait, held=[image.held]):
            pass

    def _without(self, reason: str, paths: Sequence[str]) -> Layer:
        self._tell(f"{reason}; installing without a snapshot")
        events().instant("dependencies", "miss")
        installation = self._installation()
        with events().begin("dependencies", "install"):
            done = installation.run(self._command(), paths, compiles=True)
        if done.status:
            raise _Failed(done.status)
        return installation.layer()

    def _installation(self) -> Installation:
        with contextlib.suppress(StripefsError):  # a trace of pip would do little harm
            self._image.client.unrecord(self._image.attached.id, "what it needs was installed first")
        from imagefs.deps.container.installing import Installation  # not needed by most, who find what they want

        if self._is_managed:
            self._tell(
                "the image's Python is managed by its system (PEP 668), so pip has --break-system-packages: the image "
                "itself stays as it is"
            )
        return Installation(self._image, self._options, self._of_pip, self._python, self._scratch)

    @property
    def _of_pip(self) -> Mapping[str, str]:
        """The variables that pip gets."""
        return {"PIP_BREAK_SYSTEM_PACKAGES": "1", **self._environ} if self._is_managed else self._environ
