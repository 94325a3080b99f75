"""The folder of one start: downloads and wheels that its resolver and its installer share, so that a miss pays once.

pip's `install --dry-run` downloads whatever it resolves to (a hash that an index does not tell is made so), and the
installation would do that again where the user has no cache. A project would be built for the key, and once more to be
installed. So both run with a cache in this folder, and see projects as the wheels that they were built to.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from imagefs.deps.local import BuildOrder, Wheel, build_here
from imagefs.deps.lock_cache import run_here
from imagefs.deps.prebuilt import covering, stand_in
from imagefs.deps.resolver import Question

__all__ = ["Scratch"]


class Scratch:
    """Made when something is put there, gone after `remove`, which the end of a `with` block does too.

    targets: directories that are installed into; a project around one of them is seen as it is.
    """

    def __init__(self, targets: Sequence[str] = ()) -> None:
        self._targets = [os.path.realpath(target) for target in targets]
        self._folder = ""
        self._wheels: dict[str, str] = {}
        self._runs = 0

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove what is there. Does not fail."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._wheels = "", {}

    def downloads(self) -> str:
        """The directory of a cache for an installer. Raises OSError."""
        path = self.path("downloads")
        os.makedirs(path, exist_ok=True)
        return path

    def path(self, name: str) -> str:
        """A path for something of this name. Raises OSError."""
        self._folder = self._folder or tempfile.mkdtemp(prefix="imagefs-deps-")
        return os.path.join(self._folder, name)

    def build(self, order: BuildOrder, environ: Mapping[str, str]) -> Mapping[str, Wheel]:
        """A `Builder`. Raises SnapshotError and OSError."""
        return build_here(order, environ, self.keep if "--no-use-pep517" not in order.words else None)

    def keep(self, source: str, wheel: Path) -> None:
        """Let installers have this wheel for a project. Raises OSError."""
        real = os.path.realpath(source)
        folder = self.path(f"project{len(self._wheels)}")
        if not any(f"{target}/".startswith(f"{real}/") for target in self._targets) and stand_in(
            real, str(wheel), folder
        ):
            self._wheels[real] = folder

    def seen(self, source: str) -> str:
        """The stand-in of a project, "" for none."""
        return self._wheels.get(os.path.realpath(source), "")

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """It, such that it sees the projects as their wheels."""
        if not self._wheels:
            return command
        self._runs += 1
        return [*covering(self.path(f"written{self._runs}"), self._wheels), *command]

    def run(self, question: Question, folder: str, environ: Mapping[str, str], paths: Sequence[str]) -> str:
        """As `imagefs.deps.lock_cache.run_here`. Raises SnapshotError."""
        return run_here(question._replace(command=self.command(question.command)), folder, environ, paths)
