"""The key of a dependency snapshot: everything that decides what an installation brings, and its SHA-256. Pure.

Three things make a key: the request as the user wrote it, the facts of the host and of the target's Python
(`imagefs.deps.facts` asks for them), and the inputs, which is what the request's files and settings say
(`imagefs.deps.inputs` reads them). `imagefs.deps.keybuilder.ask` does all of it.

A key is a document in canonical JSON (ASCII, sorted keys, no spaces, no fractions), so equal inputs have equal bytes on
every host:

    bootseer     "deps-key", and `version` 2
    components   by name, those of `NAMES`, all of them; what each holds is told in docs/deps.md
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from imagefs.deps.command import joined
from imagefs.errors import FormatError
from imagefs.format import documents, is_digest
from stripefs.errors import ConfigError

if TYPE_CHECKING:
    from imagefs.deps.lock import Lock

__all__ = [
    "NAMES",
    "VERSION",
    "Changes",
    "Facts",
    "Inputs",
    "Key",
    "OpenEnd",
    "Python",
    "Refusal",
    "Request",
    "Target",
    "Value",
    "canonical",
    "changes",
    "diff",
    "explain",
    "format_value",
    "key_of",
    "refusal_of",
    "takes_open_ends",
    "validate_request",
]

VERSION = 2
"""The schema: raised whenever the same request is to have another key."""

NAMES = (
    "namespace",
    "base_image",
    "system",
    "libc",
    "python",
    "accelerator",
    "installers",
    "command",
    "files",
    "lock",
    "build",
    "environment",
    "indexes",
    "settings",
    "targets",
    "salt",
    "epoch",
    "unpinned",
)
"""The components, in the order in which people see them."""


Value = str | int | bool | None | Sequence["Value"] | Mapping[str, "Value"]
"""A value of a component: JSON without fractions, whose text would depend on who writes it."""

_V = TypeVar("_V")


class Key(NamedTuple):
    """The components that a snapshot was made from. Two requests may share a snapshot if and only if these are
    equal."""

    components: Mapping[str, Value]

    @property
    def digest(self) -> str:
        """The SHA-256 of `to_json`, in hexadecimal: the name of the snapshot in a store."""
        return documents.key_digest(self.to_document())

    def to_json(self) -> bytes:
        """The document. Raises FormatError for components that are none."""
        return canonical(self.to_document())

    def to_document(self) -> dict[str, Any]:
        """The same as plain values, to be put into another document."""
        return {"bootseer": "deps-key", "version": VERSION, "components": self.components}

    @classmethod
    def from_document(cls, document: Any) -> Key:
        """The key that `to_document` made these values of. Raises FormatError."""
        if not isinstance(document, dict) or document.get("bootseer") != "deps-key":
            raise FormatError("this is not the document of a key", hint="`imagefs deps key --json` writes one")
        if document.get("version") != VERSION or isinstance(document["version"], bool):
            raise FormatError(f"the key is of version {document.get('version')!r}, which this program does not know")
        components = document.get("components")
        if not isinstance(components, dict) or set(document) != {"bootseer", "version", "components"}:
            raise FormatError("the document of a key is damaged")
        if set(components) != set(NAMES):
            raise FormatError("the document of a key lacks components, or has others than it may have")
        key = cls({name: components[name] for name in NAMES})
        key.to_json()
        return key


def canonical(value: Value) -> bytes:
    """The one text of these values. Raises FormatError for what has none: a fraction, or a name that is no text."""
    _check(value)
    return documents.canonical(value)


def _check(value: Any) -> None:
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise FormatError("a component of a key has a name that is no text")
        for inner in value.values():
            _check(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner)
    elif not (value is None or isinstance(value, str | int)):
        raise FormatError(f"a component of a key holds a {type(value).__name__}, which it may not")


class Changes(NamedTuple, Generic[_V]):
    """Differences between two collections of named things, by name. changed: what it was and what it is."""

    added: Mapping[str, _V]
    removed: Mapping[str, _V]
    changed: Mapping[str, tuple[_V, _V]]


def changes(first: Mapping[str, _V], second: Mapping[str, _V]) -> Changes[_V]:
    """The changes that make `second` of `first`. Names come sorted."""
    return Changes(
        {name: second[name] for name in sorted(second.keys() - first.keys())},
        {name: first[name] for name in sorted(first.keys() - second.keys())},
        {
            name: (first[name], second[name])
            for name in sorted(first.keys() & second.keys())
            if first[name] != second[name]
        },
    )


def diff(first: Key, second: Key) -> Changes[Value]:
    """Differences between two keys, by the path of each single value, such as `files.requirements.txt`."""
    return changes(dict(_leaves(first.components)), dict(_leaves(second.components)))


def explain(key: Key) -> list[tuple[str, str]]:
    """Every component for people: its name, and what it holds, a line for each part. Digests are cut short."""
    lines = []
    for name in NAMES:
        leaves = list(_leaves(key.components[name])) or [("", "")]
        lines += [(name, f"{path} {format_value(value)}".lstrip()) for path, value in leaves]
    return lines


def format_value(value: Value) -> str:
    """One value on one line for people."""
    if isinstance(value, str):
        return (value[: documents.SHORT] if is_digest(value) else value) or "none"
    if isinstance(value, Sequence):
        return shlex.join(format_value(one) for one in value) or "none"
    return "none" if value is None else str(value)


def _leaves(value: Value, path: str = "") -> Iterator[tuple[str, Value]]:
    """The single values in it with their paths; a list of such is one itself."""
    if isinstance(value, Mapping):
        inner: Iterable[tuple[str, Value]] = value.items()
    elif isinstance(value, Sequence) and any(isinstance(one, list | tuple | Mapping) for one in value):
        inner = ((str(number), one) for number, one in enumerate(value, 1))
    else:
        yield path, value
        return
    for name, one in inner:
        yield from _leaves(one, f"{path}.{name}" if path else name)


_SECRET = re.compile(r"(?i)secret|token|passw|credential|private|api_?key|access_?key|auth(?!or)")


class Target(NamedTuple):
    """A directory that the installation fills: its final, absolute path, who owns what is in it, and which permissions
    its files do not get."""

    path: str
    uid: int
    gid: int
    umask: int = 0o022


class Request(NamedTuple):
    """One installation.

    targets: in their order. command: the installer's argv. setup: the argv of what has to succeed before it, such as
    what makes an environment. folder: where both run, and what relative paths are of.
    python: the interpreter that installs and imports, "" for the one that the command names, else `python3`.
    requirements, inputs: files and directories that the user declares beside those that the command names.
    env: names of variables whose values decide what is installed. base_image: digest of the image's manifest, "" on a
    host. cuda, driver: as the user declares them. cpu_level: x86-64-v1 to v4 in place of what this processor has.
    epoch: stands for whatever the open ends are now; "" for none. strict: what is not pinned is refused, though it
    could be resolved.
    """

    targets: Sequence[Target]
    command: Sequence[str]
    folder: str
    python: str = ""
    setup: Sequence[str] = ()
    requirements: Sequence[str] = ()
    inputs: Sequence[str] = ()
    env: Sequence[str] = ()
    namespace: str = ""
    salt: str = ""
    epoch: str = ""
    allow_unpinned: bool = False
    strict: bool = False
    base_image: str = ""
    cuda: str = ""
    driver: str = ""
    cpu_level: str = ""

    @property
    def argv(self) -> Sequence[str]:
        """The commands that are run, as one program."""
        return joined(self.setup, self.command)


class Python(NamedTuple):
    """An interpreter as it tells of itself. markers: the variables of environment markers (PEP 508).

    executable: by which console scripts will call it. prefix: where its own pip.conf would lie. sites: directories of
    what is installed for it already. installs: the directory below which installers put what they are given no other
    for. managed: installers are to leave that to the system (PEP 668).
    """

    executable: str
    prefix: str
    implementation: str
    version: str
    soabi: str
    markers: Mapping[str, str]
    sites: Sequence[str] = ()
    installs: str = ""
    managed: bool = False


class Facts(NamedTuple):
    """The directory that it is installed into. cpu_level: x86-64-v1 to v4, "" on other architectures. libc: name and
    version.

    python: None where there is none. installers: name and version of each that the command uses. pip_config: what pip
    says of its configuration files (`pip config list`), by option as it names them.
    """

    os: str
    architecture: str
    cpu_level: str
    libc: tuple[str, str]
    python: Python | None
    installers: Mapping[str, str]
    pip_config: Mapping[str, str] = {}


class OpenEnd(NamedTuple):
    """An input that may be another thing tomorrow although every byte here is the same.

    where: `FILE:LINE`, or `command`. what: as it is written there. why: the reason, with what to do.
    """

    where: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}"


class Inputs(NamedTuple):
    """Inputs of a request: its files, variables and settings.

    command: the argv with files by name instead of path and without secrets. files: SHA-256 by name. environment: the
    declared variables, None for one that is not set. indexes: URLs without secrets, by option. settings: other options
    of installers that are set outside of the command. open_ends: in the order in which they were found, those that no
    resolver closes. unpinned: those that one does. build: variables and compilers by which something is built from
    source, None where nothing is.
    """

    command: Sequence[str]
    files: Mapping[str, str]
    environment: Mapping[str, str | None]
    indexes: Mapping[str, Sequence[str]]
    settings: Mapping[str, Sequence[str]]
    open_ends: Sequence[OpenEnd]
    unpinned: Sequence[OpenEnd] = ()
    build: Mapping[str, Mapping[str, str]] | None = None


class Refusal(NamedTuple):
    """The reason for which what is asked for can be installed and not be kept."""

    open_ends: Sequence[OpenEnd]

    @property
    def reason(self) -> str:
        """One line; of several open ends it tells the first."""
        more = len(self.open_ends) - 1
        others = f" (and {more} more)" if more else ""
        return f"{self.open_ends[0]}{others}; --epoch X or --allow-unpinned keeps it all the same"


def validate_request(request: Request) -> Request:
    """The request itself. Raises ConfigError for one that no key can be made of."""
    if not request.targets:
        raise ConfigError("there is no target", hint="name the directory that is installed into with --target DIR")
    if not request.command:
        raise ConfigError("there is no command that installs", hint="put it behind --")
    for target in request.targets:
        if not target.path.startswith("/") or ".." in target.path.split("/") or target.path == "/":
            raise ConfigError(f"{target.path!r} is no absolute path of a target")
    paths = [target.path for target in request.targets]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"{max(paths, key=paths.count)} is a target twice")
    for name in request.env:
        if "=" in name or not name:
            raise ConfigError(
                f"--env {name} is no name of a variable", hint="give the name alone, and set its value outside"
            )
        if _SECRET.search(name):
            raise ConfigError(f"--env {name} looks like a secret, and none may be part of a key")
    return request


def refusal_of(request: Request, inputs: Inputs) -> Refusal | None:
    """The reason for which there is no key whatever a resolver says; None where there may be one."""
    open_ends = [*inputs.open_ends, *(inputs.unpinned if request.strict else ())]
    return Refusal(open_ends) if open_ends and not takes_open_ends(request) else None


def takes_open_ends(request: Request) -> bool:
    """Tells whether the user takes what may change for unchanged."""
    return bool(request.epoch or request.allow_unpinned)


def key_of(request: Request, facts: Facts, inputs: Inputs, lock: Lock | None) -> Key:
    """The key. lock: what will be installed; None where the user says so otherwise, by an epoch or declared inputs."""
    python = facts.python
    components: dict[str, Value] = {
        "namespace": request.namespace,
        "base_image": request.base_image,
        "system": {
            "os": facts.os,
            "architecture": facts.architecture,
            "cpu_level": facts.cpu_level,
        },
        "libc": {"name": facts.libc[0], "version": facts.libc[1]},
        "python": None
        if python is None
        else {name: getattr(python, name) for name in ("executable", "implementation", "version", "soabi")},
        "accelerator": {"cuda": request.cuda, "driver": request.driver},
        "installers": dict(facts.installers),
        "command": list(inputs.command),
        "files": dict(inputs.files),
        "lock": None if lock is None else lock.to_key(),
        "build": None if inputs.build is None else {kind: dict(found) for kind, found in inputs.build.items()},
        "environment": dict(inputs.environment),
        "indexes": {option: list(urls) for option, urls in inputs.indexes.items()},
        "settings": {option: list(values) for option, values in inputs.settings.items()},
        "targets": [[target.path, target.uid, target.gid, f"{target.umask:03o}"] for target in request.targets],
        "salt": request.salt,
        "epoch": request.epoch,
        "unpinned": request.allow_unpinned,
    }
    return Key(components)
