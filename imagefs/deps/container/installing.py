"""Installing in a container whose upper directory is kept: what the installer left there, and what is made of it.

The upper directory is in `leftovers.upper_folder` of the image's attachment, so it goes with the last who holds that.
Inputs of the host are shown at their own paths, as requirements name them; what has to be made in the upper directory
for that goes again. Overlays are mounted without a thought for crashes (`volatile`): nobody uses it after one, and to
sync a whole file system would be the longest part of many installations.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence

from imagefs.containers import Image
from imagefs.deps import bytecode, inventory, reaper
from imagefs.deps.capture import is_captured
from imagefs.deps.container.programs import DOWNLOADS, bound, given, inside, output_of, shown, streams, told
from imagefs.deps.install import Outcome, installer_environment, read_end
from imagefs.deps.miss import text_of
from imagefs.deps.resolver import Held
from imagefs.deps.scratch import Scratch
from imagefs.errors import SnapshotError
from imagefs.plane import overlay
from imagefs.run.container import MountLayer
from imagefs.run.options import Bind, RunOptions
from stripefs.errors import ConfigError

__all__ = ["EXCHANGE", "Installation"]

EXCHANGE = "/run/imagefs"
"""Where containers find the folder in which we speak with what runs there."""


class Installation:
    """An installation in containers of `image`, which are like the job's, and have its variables. python: the
    interpreter. scratch: what its installer shares with the resolver.

    What is written is on disk, or in memory where the cache lies on an overlay. Raises OSError.
    """

    def __init__(
        self, image: Image, options: RunOptions, environ: Mapping[str, str], python: str, scratch: Scratch
    ) -> None:
        self._image, self._options, self._environ, self._python = image, options, environ, python
        self._scratch = scratch
        self._folder = image.attached.upper
        self._exchange = os.path.join(self._folder, "exchange")
        overlay.lasting(self._folder)
        os.makedirs(self._exchange, 0o700, exist_ok=True)

    @property
    def upper(self) -> str:
        """What was written."""
        return os.path.join(self._folder, "upper")

    def layer(self) -> MountLayer:
        """It, above the image. Nothing may be run here any more."""
        return bound(self.upper)

    def run_held(self, held: Held, paths: Sequence[str]) -> tuple[Outcome, str]:
        """Run pip with what was resolved before; how it ended, and why it did not do that, "" where it did.

        Raises RunError and OSError.
        """
        with open(os.path.join(self._exchange, "constraints.txt"), "w", encoding="utf-8") as file:
            file.write(held.constraints)
        words = held.words(f"{EXCHANGE}/constraints.txt", f"{EXCHANGE}/installed.json")
        done = self.run(words, paths, compiles=False)
        return done, "" if done.status else held.broken(text_of(os.path.join(self._exchange, "installed.json")))

    def run(self, command: Sequence[str], paths: Sequence[str], *, compiles: bool) -> Outcome:
        """Run the installer until it and all that it started have ended, in the working directory. Its output goes to
        standard error.

        paths: absolute, of files and directories of the host that are shown there. compiles: whether it is to make
        bytecode itself, if it likes to. Raises RunError and OSError.
        """
        with open(reaper.__file__, encoding="utf-8") as file:
            program = [self._python, "-I", "-S", "-B", "-c", file.read(), f"{EXCHANGE}/report", "0"]
        environ = self._environ
        if not compiles:  # the installer's own modules are the image's, and their bytecode is none of its packages
            environ = {**installer_environment(environ), "PYTHONDONTWRITEBYTECODE": "1"}
        binds = [*shown(paths, self._scratch.seen), Bind(self._scratch.downloads(), DOWNLOADS)]
        options = inside(self._options, [*program, *command])._replace(
            binds=[self._bind(), *binds], env=given(environ), workdir=os.getcwd()
        )
        began = time.monotonic()
        with open(os.devnull, "rb") as nothing, told() as output, streams(nothing.fileno(), output, output):
            status = self._run(options)
        seconds = time.monotonic() - began
        self._take_away([*(bind.target for bind in binds), options.workdir, EXCHANGE])
        report = self._report()
        return read_end(report[1], seconds) if len(report) > 1 else Outcome(status or 1, (), seconds)

    def compile(self, targets: Sequence[str], mode: bytecode.Mode) -> list[str]:
        """Make bytecode of what was installed into `targets`; the sources that do not compile.

        Raises SnapshotError, RunError and OSError.
        """
        entries = inventory.take(self.upper).entries
        sources = [
            f"/{path}"
            for path, facts in entries.items()
            if path.endswith(".py") and facts.is_file and is_captured(path, targets)
        ]
        if not sources:
            return []
        with open(os.path.join(self._exchange, "order"), "w", encoding="utf-8") as file:
            file.write(bytecode.order(sources, mode))
        empty = dict.fromkeys(self._environ, "")  # which is none to an interpreter
        environ = {**empty, **bytecode.environment(self._environ)}
        options = inside(self._options, bytecode.command(self._python, f"{EXCHANGE}/order"))._replace(
            binds=[self._bind()], env=given(environ)
        )
        try:
            told = output_of(self._run, options)
        except ConfigError as error:
            raise SnapshotError(f"what was installed could not be compiled: {error.message}") from error
        self._take_away([EXCHANGE])
        return bytecode.failures(told.encode())

    def _run(self, options: RunOptions) -> int:
        try:
            return self._image.run(options._replace(writable=True), kept_dir=self._folder)
        finally:
            # It says that the overlay was volatile, and the kernel would not mount it again.
            shutil.rmtree(os.path.join(self._folder, "work"), ignore_errors=True)

    def _bind(self) -> Bind:
        return Bind(self._exchange, EXCHANGE)

    def _report(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self._exchange, "report")) as file:
            return file.read().splitlines()
        return []

    def _take_away(self, paths: Sequence[str]) -> None:
        """Remove what had to be made for others to be shown there: empty files and directories."""
        for path in sorted({*paths} - {"/"}, key=len, reverse=True):
            made = os.path.join(self.upper, path.strip("/"))
            with contextlib.suppress(OSError):  # the image has it, or there is something in it
                if os.path.isdir(made) and not os.path.islink(made):
                    os.rmdir(made)
                elif os.lstat(made).st_size == 0:
                    os.unlink(made)
                while (made := os.path.dirname(made)) != self.upper:
                    os.rmdir(made)
