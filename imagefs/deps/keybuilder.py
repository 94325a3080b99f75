"""Builds the key of a request: asks the host, reads the inputs, resolves what may change, and puts the key together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from imagefs.deps import facts
from imagefs.deps.command import calls
from imagefs.deps.environment import build_variables, compilers
from imagefs.deps.facts import version_command
from imagefs.deps.inputs import Gathered, gather
from imagefs.deps.key import (
    Facts,
    Key,
    OpenEnd,
    Refusal,
    Request,
    Value,
    key_of,
    refusal_of,
    takes_open_ends,
    validate_request,
)
from imagefs.deps.local import Builder, BuildOrder, Wheel, build_here
from imagefs.deps.lock import Lock
from imagefs.deps.resolver import LockCache, LockedInstall, caching, is_uncached, question_for
from stripefs.errors import StripefsError

__all__ = ["Answer", "ask", "refusal_of_lock", "unchanged"]

_FOLDER = re.compile(r"/(#[0-9]+)?$")  # the form in which `imagefs.deps.digest.Files` names directories


class Answer(NamedTuple):
    """found: the key, or why there is none. facts: what it was made of. lock: what will be installed, None where that
    is not known. locked_install: how the installer is held to that, None where the user's own lock does. locked_as: the
    name of the lock in caches, "" for none. paths: absolute, of files and directories that it is installed from.
    wheels: what directories among these were built to."""

    found: Key | Refusal
    facts: Facts
    lock: Lock | None
    locked_install: LockedInstall | None
    locked_as: str
    paths: Sequence[str]
    wheels: Sequence[Wheel] = ()


def ask(
    request: Request,
    resolver: LockCache,
    environ: Mapping[str, str] | None = None,
    known: Facts | None = None,
    build: Builder = build_here,
    downloads: Callable[[], str] | None = None,
) -> Answer:
    """The key of a request, in the environment that the command will have, by default that of this process.

    resolver: says which distributions it brings, where no file does. known: facts, where it is installed elsewhere than
    on this host, in a container. build: makes wheels of directories. downloads: makes a directory that the resolver and
    the installer share as their cache where they would have none, as in containers.

    Raises ConfigError for a request that no key can be made of, for inputs that cannot be read and for programs that do
    not answer, and SnapshotError for what cannot be resolved or built.
    """
    environ = os.environ if environ is None else environ
    validate_request(request)
    if known is None:
        python = request.python or facts.python_of(request.setup or request.command, environ, request.folder)
        needed, others = _installers(request, python, environ)
        known = facts.ask(python, needed, others, request.cpu_level, environ, request.folder)
    gathered = gather(request, environ, known)
    if refusal := refusal_of(request, gathered.inputs):
        return Answer(refusal, known, None, None, "", gathered.paths)
    lock, locked_install, name = gathered.locked, None, ""
    call, command = gathered.call, request.command
    if (
        call is not None
        and downloads is not None
        and (request.base_image or is_uncached(call, known.pip_config, environ))
    ):
        command = caching(command, call, downloads())
    gathered, wheels = _built(request, gathered, command, known, environ, build)
    if lock is None and call is not None and not takes_open_ends(request):
        name = key_of(request, known, gathered.inputs, None).digest
        python = known.python.executable if known.python is not None else ""
        question = question_for(command, call, python, setup=bool(request.setup))
        tool = call.tool, known.installers.get(call.tool, "")
        lock, cached = resolver.lock(name, tool, question, request.folder, environ, gathered.paths)
        locked_install = LockedInstall(request.setup, command, call.tool, lock, cached)
    if takes_open_ends(request):
        lock = None
    if lock is not None and (refusal := refusal_of_lock(request, lock, gathered.pinned)):
        return Answer(refusal, known, lock, None, name, gathered.paths)
    inputs = gathered.inputs
    if wheels or gathered.from_source or lock is None or lock.built:
        inputs = inputs._replace(build=_environment(request, environ))
    return Answer(key_of(request, known, inputs, lock), known, lock, locked_install, name, gathered.paths, wheels)


def _built(
    request: Request,
    gathered: Gathered,
    command: Sequence[str],
    known: Facts,
    environ: Mapping[str, str],
    build: Builder,
) -> tuple[Gathered, Sequence[Wheel]]:
    """With the digests of projects among the files, and their wheels. Raises SnapshotError, OSError."""
    if not gathered.projects or gathered.call is None:
        return gathered, ()
    python = known.python.executable if known.python is not None else ""
    sources = sorted(gathered.projects.values())
    order = BuildOrder(gathered.call, command, gathered.options, python, sources, request.folder)
    wheels = build(order, environ)
    digests = {name: wheels[path].digest for name, path in gathered.projects.items()}
    files = {**gathered.inputs.files, **digests}
    return gathered._replace(inputs=gathered.inputs._replace(files=files)), [wheels[path] for path in sources]


def _environment(request: Request, environ: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    """The variables that decide beside the sources. The compilers of an image are those of its digest."""
    return {"variables": build_variables(environ), "compilers": {} if request.base_image else compilers(environ)}


def unchanged(request: Request, answer: Answer, environ: Mapping[str, str] | None = None) -> bool:
    """Tells whether the files, variables and settings that this answer was made of still say the same.

    Directories are left out: what is built from one may write there.
    """
    then = answer.found
    try:
        inputs = gather(request, os.environ if environ is None else environ, answer.facts).inputs
    except (StripefsError, OSError):
        return False
    now = key_of(request, answer.facts, inputs, answer.lock)
    return isinstance(then, Key) and _settled(now) == _settled(then)


def _settled(key: Key) -> Mapping[str, Value]:
    """Names and values that an installation does not change: all but directories. The environment of builds is that of
    this process."""
    files = key.components["files"]
    assert isinstance(files, Mapping)
    kept = {name: one for name, one in files.items() if not _FOLDER.search(name)}
    return {**key.components, "files": kept, "build": None}


def _installers(
    request: Request, python: str, environ: Mapping[str, str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Questions to the installers that a command names, and to those that it may use where it names none.

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


def refusal_of_lock(request: Request, lock: Lock, pinned: Collection[str]) -> Refusal | None:
    """The reason for which there is no key although everything was resolved. pinned: names of which something says what
    they are.
    """
    loose = [
        OpenEnd("index", str(one), "no digest of its file is known; add --hash, or use an index with digests")
        for one in lock.unpinned
        if one.kind in ("wheel", "sdist")
    ]
    if request.strict:
        why = "nothing says which version is to be installed, and --strict is given"
        loose += [OpenEnd("requirements", str(one), why) for one in lock.requirements if one.name not in pinned]
    return Refusal(loose) if loose else None
