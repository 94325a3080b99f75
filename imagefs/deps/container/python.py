"""The Python of an image: what it says of itself, asked in a container of the image once, and kept:

    CACHE/deps/interpreters/HASH     what it printed

HASH is that of the image, of the machine, of the PATH on which the interpreter is looked for, and of what it is asked.
The tree of an image never changes, so neither does the answer.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from imagefs.containers import Image
from imagefs.deps import facts, notes
from imagefs.deps.container.programs import inside, output_of
from imagefs.deps.request import Facts
from imagefs.run.options import RunOptions
from stripefs.errors import ConfigError

__all__ = ["Interpreter"]


class Interpreter:
    """One of an image, in containers like the job's.

    search: the PATH that containers have. python: its name or path. cpu_level: the one that the user wants, "" for the
    processor's. asked: HASH. told: what it printed, once that is known.
    """

    def __init__(self, image: Image, options: RunOptions, search: str, python: str, cpu_level: str) -> None:
        self._image = image
        self._options = options
        self._command = facts.inside_command(python)
        self._level = cpu_level
        name = json.dumps([image.attached.base, os.uname().machine, search, self._command])
        self.asked = hashlib.sha256(name.encode()).hexdigest()
        self.told = ""
        self._kept = Path(image.client.settings.cache, "deps/interpreters", self.asked)

    def kept(self) -> Facts | None:
        """The facts of an installation for it, as it told this host earlier; None where it has not."""
        try:
            return self.take(self._kept.read_text())
        except (OSError, ValueError, ConfigError):
            return None

    def take(self, told: str) -> Facts:
        """The facts, from what it printed. Raises ConfigError."""
        found = facts.read_inside(told, self._level)
        self.told = told
        return found

    def ask(self) -> Facts:
        """The facts, as it tells them in a container. Raises ConfigError, RunError and OSError."""
        options = inside(self._options, self._command)._replace(network="none")
        found = self.take(output_of(self._image.run, options))
        notes.keep(self._kept, self.told)
        return found
