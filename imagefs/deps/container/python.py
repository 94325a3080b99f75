"""What the Python of an image is, asked in a container of it once, and kept:

    CACHE/deps/interpreters/HASH     what it printed

HASH is that of the image, of the PATH on which the interpreter is looked for, and of what it is asked. The tree of an
image never changes, so neither does the answer.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from imagefs.containers import Image
from imagefs.deps import facts, notes
from imagefs.deps.container.programs import inside, output_of
from imagefs.deps.request import Facts
from imagefs.run.options import RunOptions

__all__ = ["facts_of"]


def facts_of(image: Image, options: RunOptions, search: str, python: str, cpu_level: str) -> Facts:
    """The facts of an installation for this interpreter of the image, in a container like the job's.

    search: the PATH that containers have. cpu_level: the one that the user wants, "" for the processor's. Raises
    ConfigError, RunError and OSError.
    """
    name = json.dumps([image.attached.base, search, facts.inside_command(python)])
    kept = Path(image.client.settings.cache, "deps/interpreters", hashlib.sha256(name.encode()).hexdigest())
    try:
        return facts.read_inside(kept.read_text(), cpu_level)
    except FileNotFoundError:
        pass
    told = output_of(image.run, inside(options, facts.inside_command(python))._replace(network="none"))
    found = facts.read_inside(told, cpu_level)
    notes.keep(kept, told)
    return found
