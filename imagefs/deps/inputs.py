"""Reads what a request is made of: requirements files, sources, variables, and settings of installers."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagefs.deps.command import Call, calls, decisive
from imagefs.deps.digest import Files
from imagefs.deps.environment import (
    options_from_variables,
    pip_settings,
    preinstalled,
    searched_folders,
    uv_files,
    uv_table,
)
from imagefs.deps.key import Facts, Inputs, OpenEnd, Request
from imagefs.deps.lock import Lock, without_secrets
from imagefs.deps.requirements import Reader, Requirements
from stripefs.errors import ConfigError

__all__ = ["Gathered", "gather"]

_INDEXES = ("index-url", "extra-index-url", "index", "default-index")

_LISTS = {
    "requirement": False,
    "constraint": True,
    "build-constraint": True,
    "exclude": True,
}
"""Options that name files of requirements, and whether these are constraints."""

_FILES = (*_LISTS, "override", "find-links")

_ARCHIVES = (".whl", ".gz", ".bz2", ".xz", ".zip")

_UNREAD = "it cannot be read from here; declare it with --requirements or --input"

_BUILT = "what builds it is not known here; build a wheel of it first, or declare all that decides with --input"

_UNKNOWN = "what it installs is not known here; declare what decides that with --input, or give --epoch"

_ON = ("1", "true", "yes", "on", "t", "y")  # as pip and uv write it in variables and files


class Gathered(NamedTuple):
    """call: the installer that the command runs; None for a command of which only its declared inputs are known.
    locked: what is installed, where lock files and hashes say all of it. pinned: as in `Requirements`. paths: absolute,
    of the files and directories that were read. projects: directories that are built to be installed, by their names
    among the files, where they have no digest yet. options: of requirements files, for these builds.
    from_source: something is asked for that wheels are not to be taken of."""

    inputs: Inputs
    call: Call | None
    locked: Lock | None
    pinned: frozenset[str]
    paths: Sequence[str]
    projects: Mapping[str, str]
    options: Sequence[str]
    from_source: bool


def gather(request: Request, environ: Mapping[str, str], facts: Facts) -> Gathered:
    """Everything that a request's files, variables and settings say. Raises ConfigError for what cannot be read."""
    return _Gathering(request, environ, facts).run()


class _Gathering:
    def __init__(self, request: Request, environ: Mapping[str, str], facts: Facts) -> None:
        self._request = request
        self._environ = environ
        self._python = facts.python
        self._set = pip_settings(facts.pip_config, environ)
        self._files = Files([target.path for target in request.targets])
        self._overridden = False
        self._indexes: dict[str, list[str]] = {}
        self._settings: dict[str, list[str]] = {}
        variables = {name: environ.get(name) for name in request.env}
        markers = self._python.markers if self._python else None
        self._reader = Reader(request.folder, self._files.text, os.path.exists, variables, markers)

    def run(self) -> Gathered:
        for path in self._request.requirements:
            self._list("command", path, "requirement")
        called = list(calls(self._request.command))
        for call in called:
            self._call("command", self._known("command", call) if call.moved else call)
        self._words(called)
        if not called and not self._request.inputs and not self._request.requirements:
            self._reader.open("command", shlex.join(self._request.command), _UNKNOWN)
        tools = {call.tool for call in called}  # of a command that is none of these, nobody knows which it uses
        if not tools or "pip" in tools:
            self._outside("pip", self._set)
        if tools != {"pip"}:
            self._outside("uv", options_from_variables(self._environ, "uv"))
            folders = [self._folder_of(call) for call in called if call.tool == "uv-project"]
            for path in uv_files(self._environ, (folders or [self._request.folder])[0]):
                self._settings_of_uv(path)
        said = self._reader.finish()
        projects, strange = {}, []
        declared = {self._absolute(path) for path in self._request.inputs}
        for source in said.sources:
            if not called and source.path not in declared and os.path.isdir(source.path):
                strange.append(OpenEnd(source.where, self._name(source.path), _BUILT))
            if called and not source.editable and os.path.isdir(source.path):
                projects[self._files.project(source.path, self._name(source.path))] = source.path
            else:
                self._source(source.path, source.editable)
        for source in said.find_links:
            if os.path.exists(source.path):  # pip and uv take what is not there for empty
                self._source(source.path)
        for path in self._request.inputs:
            self._source(self._absolute(path))
        inputs = Inputs(
            [self._shown(word) for word in self._decisive(called)],
            self._files.digests,
            {name: self._value(name) for name in sorted(self._request.env)},
            dict(sorted(self._indexes.items())),
            dict(sorted(self._settings.items())),
            [*said.open_ends, *strange],
            said.unpinned,
        )
        only = called[0] if called else None
        locked = self._locked(only, said)
        return Gathered(inputs, only, locked, said.pinned, self._files.paths, projects, said.options, said.from_source)

    def _decisive(self, called: Sequence[Call]) -> Sequence[str]:
        """The words that count."""
        command = self._request.command
        return [*self._request.setup, *(decisive(command) if called else command)]

    def _locked(self, call: Call | None, said: Requirements) -> Lock | None:
        """The lock that the user's own files are; None where a resolver has to say what is installed."""
        if said.locked is None or call is None:
            return None
        # uv asks for no digests of what others need besides, and an override takes the place of what has some.
        exact = call.tool != "uv" or "sync" in self._request.command or "--require-hashes" in call.switches
        return Lock.of(said.locked, "the lock file") if exact and not self._overridden else None

    def _call(self, where: str, call: Call) -> None:
        """An installer with its arguments."""
        for name, said in options_from_variables(call.variables, call.tool.removesuffix("-project")).items():
            self._set_option(where, name, said)
        self._present(call)
        if "--report" in call.switches:
            self._reader.open(where, "--report", "a start that finds a snapshot writes none; leave it out")
        if call.tool == "uv" and (folder := self._directory(call)):
            self._reader.open(where, f"--directory {folder}", "what lies there is not looked for; run it there instead")
        for text, editable in call.requirements:
            self._reader.requirement(where, text, editable=editable)
        for purpose, values in call.values.items():
            for value in values:
                self._argument(where, purpose, value)
        if "--no-binary" in call.switches:
            self._reader.option(where, "no-binary")
        if "--pre" in call.switches:
            self._reader.option(where, "pre")
        if "--require-hashes" in call.switches:
            self._reader.option(where, "require-hashes")
        if call.tool == "uv-project":
            self._project(where, call)

    def _present(self, call: Call) -> None:
        """Distributions that pip finds installed already. Of an image it is known, but for where a variable has pip
        look."""
        folders = searched_folders(call, self._set, self._environ, self._python)
        found = folders if self._request.base_image else preinstalled(folders)
        if found:
            self._settings["pip.present"] = found

    def _argument(self, where: str, purpose: str, value: str) -> None:
        if purpose in _INDEXES:
            self._indexes.setdefault(f"{where}.{purpose}", []).append(without_secrets(value))
        elif purpose in (*_LISTS, "override"):
            self._list(where, value, purpose)
        elif purpose == "find-links":
            self._reader.option(where, "find-links", value)
        elif purpose == "group":
            self._group(where, value)
        elif purpose == "prerelease" and value == "allow":
            self._reader.option(where, "pre")
        elif purpose == "torch-backend" and value == "auto":
            self._reader.open(where, "--torch-backend auto", "it follows the driver of this host; name the backend")
        elif purpose == "script":
            self._reader.open(where, value, "what a script wants is not read; list it in a requirements file")

    def _group(self, where: str, value: str) -> None:
        """A group of dependencies, as `[PATH:]NAME`."""
        path = self._absolute(value.rpartition(":")[0] or "pyproject.toml")
        self._files.text(path, posixpath.basename(path))
        self._reader.open(where, f"--group {value}", "it names no exact versions; compile it into a requirements file")

    def _list(self, where: str, path: str, purpose: str) -> None:
        if "://" in path and not path.startswith("file:"):
            self._reader.open(where, path, "it is not on this host; keep a copy here")
        elif path in ("-", "/dev/stdin"):
            self._reader.open(where, path, "what comes from standard input is not read; put it into a file")
        elif purpose == "override":
            own = self._reader.apart()
            own.file(path)
            self._reader.take(own)
        else:
            self._reader.file(path, constraint=_LISTS[purpose])

    def _project(self, where: str, call: Call) -> None:
        """`uv sync`, which installs what a lock file says."""
        folder = self._folder_of(call)
        if call.moved:
            self._reader.open(where, "uv sync", "it runs in another directory; begin there")
            return
        lock = os.path.join(folder, "uv.lock")
        if not os.path.isfile(lock):
            self._reader.open(where, "uv sync", "there is no uv.lock; `uv lock` makes it")
            return
        self._files.text(os.path.join(folder, "pyproject.toml"), "pyproject.toml")
        if not call.switches & {"--locked", "--frozen"}:
            self._reader.open(where, "uv sync", "it may choose other versions than uv.lock; add --locked")
        self._reader.lock(lock, copied="--no-editable" in call.switches)

    def _folder_of(self, call: Call) -> str:
        """The folder of the project of `uv sync`."""
        project = (call.values.get("project") or [self._environ.get("UV_PROJECT", "")])[-1]
        return self._absolute(posixpath.join(self._directory(call), project))

    def _directory(self, call: Call) -> str:
        """The directory to which uv goes before it reads anything, "" where it stays."""
        return (call.values.get("directory") or [self._environ.get("UV_WORKING_DIR", "")])[-1]

    def _source(self, path: str, editable: bool = False) -> None:
        # the target of a link is looked for there for ever, so its place counts as well
        self._files.add(path, path if editable else self._name(path))

    def _name(self, path: str) -> str:
        """A name for an absolute path that is the same on all nodes: relative to the command's directory, or its last
        part."""
        folder = self._request.folder.rstrip("/")
        return (
            posixpath.relpath(path, folder or "/") if f"{path}/".startswith(f"{folder}/") else posixpath.basename(path)
        )

    def _words(self, called: Sequence[Call]) -> None:
        """The files among the words of the command."""
        programs = {word for call in called for word in call.program}
        for place, word in enumerate(self._request.command):
            if word in programs or (word.startswith("-") and "=" not in word):
                continue
            if place or "/" in word:
                self._word(word.partition("=")[2] if word.startswith("-") else word, first=not place)

    def _word(self, word: str, *, first: bool) -> None:
        path = self._absolute(word)
        if not os.path.isfile(path) or self._is_target(path):
            return
        try:
            with open(path, "rb") as file:
                if first and file.read(2) != b"#!":
                    return  # a program, which its version says better than its bytes
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        self._files.add(path, self._name(path))

    def _settings_of_uv(self, path: str) -> None:
        """A configuration file of uv, of which all counts that is for uv."""
        table = uv_table(path)
        for place in (table, table.get("pip")):
            if isinstance(place, dict) and place.get("torch-backend") == "auto":
                self._argument("settings of uv", "torch-backend", "auto")
        for option in {"output-file", "universal"} & {*table.get("pip", ())}:
            self._reader.open(
                "settings of uv", f"pip.{option}", "it would change what `uv pip compile` answers; leave it out"
            )
        self._overridden |= "override-dependencies" in table
        text = without_secrets(json.dumps(table, sort_keys=True, default=str))
        name = f"uv.{posixpath.basename(path)}"
        self._settings.setdefault(name, []).append(hashlib.sha256(text.encode()).hexdigest())

    def _known(self, where: str, call: Call) -> Call:
        """The call without what cannot be read from here, which is an open end unless the user declares it."""
        declared = {posixpath.basename(path) for path in (*self._request.requirements, *self._request.inputs)}

        def is_known(text: str, *, path: bool) -> bool:
            if posixpath.basename(text) in declared:
                return False
            elsewhere = call.moved and not text.startswith(("/", "file:"))
            if "$" in text or (path and "://" not in text and (elsewhere or not os.path.exists(self._absolute(text)))):
                self._reader.open(where, text, _UNREAD)
                return False
            return True

        return call._replace(
            requirements=[one for one in call.requirements if is_known(one[0], path=_is_path(one[0]))],
            values={
                purpose: [value for value in values if is_known(value, path=purpose in _FILES)]
                for purpose, values in call.values.items()
            },
        )

    def _outside(self, tool: str, settings: Mapping[str, Sequence[str]]) -> None:
        """Settings of a tool beside its command line."""
        for name, values in settings.items():
            purpose = "index" if name.endswith("index.url") else name.rpartition(".")[2]
            self._set_option(f"settings of {tool}", purpose, values)
            component = self._indexes if purpose in _INDEXES else self._settings
            component[f"{tool}.{name}"] = [self._shown(value) for value in values]

    def _set_option(self, where: str, purpose: str, values: Sequence[str]) -> None:
        """An option that is set in a file or by a variable."""
        for value in values:
            if purpose in ("pre", "require-hashes"):
                if value.lower() in _ON:
                    self._reader.option(where, purpose)
            elif purpose in ("no-binary", "no-binary-package"):
                self._reader.option(where, "no-binary")
            elif purpose not in _INDEXES:
                self._argument(where, purpose, value)

    def _shown(self, word: str) -> str:
        """A word without secrets, in which a file goes by its name."""
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name = self._files.name_of(self._absolute(value))
        return f"{option}{equals}{name or without_secrets(value)}"

    def _value(self, name: str) -> str | None:
        value = self._environ.get(name)
        return None if value is None else without_secrets(value)

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._request.folder, path.removeprefix("file://")))

    def _is_target(self, path: str) -> bool:
        return any(path == target.path or path.startswith(f"{target.path}/") for target in self._request.targets)


def _is_path(text: str) -> bool:
    path = text.partition("@")[0]
    return "://" not in text and (path.startswith(".") or "/" in path or path.endswith(_ARCHIVES))
