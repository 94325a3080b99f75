"""From a request to its key: asks the host, reads the inputs, and puts the key together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagefs.deps import facts
from imagefs.deps.command import calls
from imagefs.deps.facts import version_command
from imagefs.deps.inputs import gather
from imagefs.deps.key import Key, Value
from imagefs.deps.request import Facts, Refusal, Request, checked, key_of
from imagefs.deps.requirements import Pins
from stripefs.errors import StripefsError

__all__ = ["Answer", "ask", "unchanged"]


_FOLDER = re.compile(r"/(#[0-9]+)?$")  # how `imagefs.deps.contents.Files` names directories


class Answer(NamedTuple):
    """found: the key, or why there is none. facts: what it was made of. pins: what is known of what it will bring, None
    where nothing is. paths: absolute, of files and directories that it is installed from."""

    found: Key | Refusal
    facts: Facts
    pins: Pins | None
    paths: Sequence[str]


def ask(request: Request, environ: Mapping[str, str] | None = None, known: Facts | None = None) -> Answer:
    """The key of a request, in the environment that the command will have, by default that of this process.

    known: facts, where it is installed elsewhere than on this host, in a container. Raises ConfigError for a request
    that no key can be made of, for inputs that cannot be read and for programs that do not answer.
    """
    environ = os.environ if environ is None else environ
    checked(request)
    if known is None:
        python = request.python or facts.python_of(request.setup or request.command, environ, request.folder)
        needed, others = _installers(request, python, environ)
        known = facts.ask(python, needed, others, request.cpu_level, environ, request.folder)
    inputs, pins, paths = gather(request, environ, known)
    return Answer(key_of(request, known, inputs), known, pins, paths)


def unchanged(request: Request, answer: Answer, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the files, variables and settings that this answer was made of still say the same.

    Directories are left out: what is built from one may write there.
    """
    then = answer.found
    try:
        now = ask(request, environ, answer.facts).found
    except (StripefsError, OSError):
        return False
    return isinstance(now, Key) and isinstance(then, Key) and _without_folders(now) == _without_folders(then)


def _without_folders(key: Key) -> Mapping[str, Value]:
    files = key.components["files"]
    assert isinstance(files, Mapping)
    return {**key.components, "files": {name: one for name, one in files.items() if not _FOLDER.search(name)}}


def _installers(
    request: Request, python: str, environ: Mapping[str, str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What the installers that a command names are asked, and those that it may use where it names none.

    One that comes into being with the target, as the pip of a new environment, is that of the interpreter.
    """

    def asked(programs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        return {name: version_command(program, environ, request.folder) for name, program in programs.items()}

    named = {call.tool.removesuffix("-project"): call.program for call in calls(request.command)}
    if named:
        return asked({name: program for name, program in named.items() if _exists(program[0], request.folder)}), {}
    return {}, asked({**({"pip": [python, "-m", "pip"]} if python else {}), "uv": ["uv"]})


def _exists(program: str, folder: str) -> bool:
    return "/" not in program or os.path.exists(os.path.join(folder, program))
