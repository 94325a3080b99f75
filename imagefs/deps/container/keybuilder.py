"""The key of what is installed in a container: made of what the image's Python says, of a hint or of its own word.

A hint (`imagefs.deps.container.early`) may say what the interpreter is. No container is made on the strength of that,
neither to resolve nor to build: where one is needed the interpreter is asked first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from imagefs.containers import AttachedImage
from imagefs.daemon.protocol import Attached
from imagefs.deps.container.early import EarlyStart, Hint
from imagefs.deps.container.programs import DOWNLOADS, Interpreter, env_words, helper_options, host_binds, output_of
from imagefs.deps.key import Facts, Request, Target
from imagefs.deps.keybuilder import Answer, ask, unchanged
from imagefs.deps.local import Scratch
from imagefs.deps.resolver import QUIET, LockCache, Question
from imagefs.errors import RunError, SnapshotError
from imagefs.run.options import Bind, ImageConfig, RunOptions
from imagefs.run.spec import PATH, own_mount, variables
from stripefs.errors import ConfigError

if TYPE_CHECKING:
    from imagefs.deps.container.start import ContainerRequest
    from imagefs.deps.local import BuildOrder, Wheel

__all__ = ["KeyBuilder"]

_WHEELS = "/run/imagefs-wheels"
"""The path in the containers that build of the directory for what they build."""


class KeyBuilder:
    """Makes the key of a start. Raises ConfigError for a target that containers would not see.

    request: what decides the key, once the interpreter is known. python: its name or path. of_pip: the variables that
    pip gets. command: installs as the user asks for it. managed: whether the interpreter leaves installing to the
    image's system (PEP 668). early: None for none. make: whether a store that is not there yet is made.
    """

    def __init__(
        self,
        image: AttachedImage,
        options: RunOptions,
        request: ContainerRequest,
        scratch: Scratch,
        early: EarlyStart | None,
        *,
        make: bool = True,
    ) -> None:
        self._image = image
        self._options = options
        self._request = request
        self._scratch = scratch
        self._early = early
        config = ImageConfig.parse(image.attached.config)
        for target in request.key_request.targets:
            if own := own_mount(target.path, config):
                raise ConfigError(
                    f"what is installed in {target.path} would not be seen: each container has a file system of its own"
                    f" at {own}",
                    hint="name another --deps-target",
                )
        self._environ = variables((PATH, *config.env), options.env, os.environ)
        # Files of this host, such as its pip.conf, are none of the container's.
        self._asking = {**self._environ, "PIP_CONFIG_FILE": os.devnull}
        self.python = request.key_request.python or "python3"
        search, level = self._environ.get("PATH", ""), request.key_request.cpu_level
        self._interpreter = Interpreter(image, options, search, self.python, level)
        read = early.lock if early is not None else None
        cache, age = image.client.settings.cache, request.resolve_age
        self.locks = LockCache(cache, request.store, age, self._resolve, make=make, read=read)
        self.request: Request
        self.managed = False
        self.hinted = False
        """Tells whether only a hint says what the interpreter is."""

    def hint(self) -> Facts | None:
        """The facts that a hint tells; None where there is none, or none is needed. Raises ConfigError."""
        if self._early is None or self._interpreter.kept() is not None:
            return None
        if (hint := self._early.hint(self._interpreter.asked)) is None:
            return None
        self.hinted = True
        return self._take(self._interpreter.take(hint.told))

    def known(self) -> Facts:
        """The facts by the interpreter's own word. Raises StripefsError, OSError."""
        self.hinted = False
        if (known := self._interpreter.kept()) is None:
            self.end_early()
            known = self._interpreter.ask()
        return self._take(known)

    def _take(self, known: Facts) -> Facts:
        request, python = self._request.key_request, known.python
        self.managed = python is not None and python.managed and not request.targets
        targets = request.targets or [Target(python.installs if python is not None else "", 0, 0)]
        base = self._image.attached.base
        self.request = request._replace(targets=targets, command=self.command, python=self.python, base_image=base)
        return known

    def answer(self, known: Facts) -> Answer:
        """The key, or why there is none. Raises ConfigError, SnapshotError, OSError."""
        return ask(self.request, self.locks, self._asking, known, self._build, lambda: DOWNLOADS)

    def unchanged(self, answer: Answer) -> bool:
        """Tells whether what this answer was made of still says the same."""
        return unchanged(self.request, answer, self._asking)

    def hint_for(self, answer: Answer, name: str) -> tuple[str, str] | None:
        """Name and document of the hint that leads later starts to this answer, and to the snapshot of this name."""
        if self._early is None:
            return None
        hint = Hint(self._interpreter.asked, self._interpreter.told, answer.locked_as, name)
        return self._early.name, hint.to_json(self._early.name).decode()

    def attached(self, name: str) -> Attached | None:
        """The snapshot of this name where it was attached early, which the caller lets go of."""
        return self._early.take(self._interpreter.asked, name) if self._early is not None else None

    @property
    def of_pip(self) -> Mapping[str, str]:
        return {"PIP_BREAK_SYSTEM_PACKAGES": "1", **self._environ} if self.managed else self._environ

    @property
    def command(self) -> list[str]:
        into = [word for target in self._request.key_request.targets for word in ("--target", target.path)]
        files = [word for file in self._request.files for word in ("-r", file)]
        return [self.python, "-m", "pip", "install", *into, *files]

    def _build(self, order: BuildOrder, environ: Mapping[str, str]) -> Mapping[str, Wheel]:
        """Wheels that the image's pip makes of directories of the host, in a container that goes afterwards. pip writes
        beside the sources there, as it does when it installs. Raises SnapshotError, OSError."""
        from imagefs.deps.local import read_wheel, wheel_in

        self._need_word("a directory")
        found = {}
        with tempfile.TemporaryDirectory(prefix="imagefs-wheels-") as folder:
            for number, source in enumerate(order.sources):
                out = os.path.join(folder, str(number))
                os.mkdir(out)
                binds = [*host_binds([source, *_local(order.more)]), self._downloads()]
                options = helper_options(self._options, order.command(source, _WHEELS))._replace(
                    binds=[*binds, Bind(out, _WHEELS)],
                    env=env_words(self._environ),
                    workdir=order.folder,
                    writable=True,
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
        """The output of pip in a container like the job's, which goes afterwards. Raises SnapshotError."""
        self._need_word("what is asked for")
        binds = [*host_binds(paths, self._scratch.seen), self._downloads()]
        options = helper_options(self._options, question.command)._replace(
            binds=binds, env=env_words({**self.of_pip, **QUIET}), workdir=folder, writable=True
        )
        try:
            return output_of(self._image.run, options)
        except (ConfigError, RunError) as error:
            raise SnapshotError(f"the requirements could not be resolved: {error.message}") from error

    def _need_word(self, subject: str) -> None:
        """Raise SnapshotError where the interpreter has not said itself what it is."""
        if self.hinted:
            raise SnapshotError(f"{subject} cannot be resolved by a hint")
        self.end_early()

    def end_early(self) -> None:
        """Before a container is made for anything but the job: then the hint was wrong, or there was none."""
        if self._early is not None:
            self._early.end()

    def _downloads(self) -> Bind:
        return Bind(self._scratch.downloads(), DOWNLOADS)


def _local(words: Sequence[str]) -> list[str]:
    """The paths of the host among options."""
    return [word for word in words if word.startswith("/") and os.path.exists(word)]
