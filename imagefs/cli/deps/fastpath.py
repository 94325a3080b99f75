"""The beginning of an installation: `imagefs deps run`, `pip`, `uv` and `venv`, as mostly written, without click.

A start that finds what it wants mounted is over in a moment, so nothing is loaded that it does not need. A mount lasts
until the process ends for which it is: that of `--owner`, else the one that runs this command.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from imagefs.cli.flags import CONFIG, PLANE, REQUEST, TREE, locks_of, read_line, recording, request_of
from imagefs.config import Settings, resolve
from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps.key import Key, Refusal, Request, validate_request
from imagefs.format.inodes import printable
from imagefs.reference import parse_store
from imagefs.settings import TreeOptions
from imagefs.startup.emission import events
from stripefs.cli.fastpath import Flag
from stripefs.cli.output import INTERRUPTED, tell
from stripefs.errors import ConfigError, StripefsError
from stripefs.options import Given

if TYPE_CHECKING:
    from imagefs.deps.local import Scratch

__all__ = ["FORMS", "INSTALL", "SECTIONS", "begin", "command_of", "named_store", "plain_deps", "setup_of", "users_of"]

_BETWEEN = frozenset(("sudo", "doas", "su", "runuser", "timeout", "time", "flock"))
"""Programs that start this one, wait for it and end with it: who runs these is the user."""

_INIT = 1


def users_of(owner: str) -> list[tuple[int, int]]:
    """The process that `--owner` names, else the one that runs this command, and when it began.

    None where that is process 1, or outside of this PID namespace: the one never ends, the other is not to be seen
    (`systemd`, `docker exec`). Raises ConfigError for one that is named and is not there.
    """
    process = int(owner) if owner.isdecimal() else 0 if owner else _parent()
    began = processes.began(process) if process else 0
    if owner and not began:
        raise ConfigError(f"--owner {owner}: there is no such process", hint="give a PID, such as $$ of a shell")
    return [(process, began)] if began and (owner or process != _INIT) else []


def _parent() -> int:
    process = os.getppid()
    while True:
        name, parent = processes.started_by(process)
        if name not in _BETWEEN:
            return process
        process = parent


START = (
    Flag("wait", "wait", "Return after publication, and not when the job may go on.", "switch"),
    Flag("probe", "probe", "A Python program that must run with the mounted snapshot.", metavar="CODE"),
    Flag("bytecode", "bytecode", "Comparison of sources with their bytecode at imports.", default="unchecked",
         choices=("unchecked", "checked")),
    Flag("allow-file", "allowed", "Files in the target that need not belong to a package.", "texts", "PATTERN"),
    Flag("allow-conflicts", "tolerant", "Publish packages that do not fit one another, as after --no-deps.", "switch"),
    Flag("allow-setuid", "setuid", "Publish programs with setuid, setgid or capabilities, and devices.", "switch"),
    Flag("owner", "owner", "Unmount when this process ends.  [the one that runs this command]", metavar="PID"),
    Flag("keep", "keep", "Leave it mounted until it is unmounted.", "switch"),
    Flag("workload", "workload", "The name of the start for its record and replay.", metavar="NAME",
         default="deps"),
    Flag("no-record", "no_record", "Leave no trace of this start.", "switch"),
    PLANE,
    TREE[0],
)  # fmt: skip
"""Flags of a start."""

INSTALL = (*REQUEST, *START, CONFIG)
"""The flags of commands that install."""

SECTIONS = ("deps", "store", "daemon")
"""Sections of settings that are flags of theirs besides."""

FORMS = ("run", "pip", "uv", "venv")
"""The commands that install. Of all but `run`, words that look like flags and are none of ours are the installer's."""


def command_of(form: str, words: Sequence[str], target: str, python: str) -> Sequence[str]:
    """The command that one of `FORMS` runs: from the words that are no flags of ours, the target and the interpreter,
    if any."""
    match form:
        case "pip":
            return [python or "python3", "-m", "pip", "install", "--target", target, *words]
        case "uv":
            return ["uv", "pip", "install", *(["--python", python] if python else []), "--target", target, *words]
        case "venv":
            return [python or "python3", "-m", "pip", "--python", f"{target}/bin/python", "install", *words]
        case _:
            return words


def setup_of(form: str, target: str, python: str) -> Sequence[str]:
    """The command that one of `FORMS` runs before its own."""
    return [python or "python3", "-m", "venv", "--without-pip", target] if form == "venv" else ()


def plain_deps(arguments: Sequence[str]) -> Callable[[], int] | None:
    """The body of `imagefs deps` with these arguments, None where click is to read them."""
    if not arguments or arguments[0] not in FORMS:
        return None
    form = arguments[0]
    said = read_line(arguments[1:], INSTALL, SECTIONS, others=form != "run")
    if said is None or not said.words:
        return None
    return lambda: begin(form, said.words, said.values, said.given)


def begin(form: str, words: Sequence[str], values: Mapping[str, Any], given: Given) -> int:
    """Have what is asked for in its target; the exit status of the installer, 0 where none had to run.

    values: of the flags in `INSTALL`, by field. given: settings, as flags say them. Raises ConfigError, and what
    `imagefs.deps.host.run` raises; of all else people are told, and the installer runs.
    """
    if len(values["targets"]) != 1:
        raise ConfigError("a host has one target", hint="--target DIR names the directory that is installed into")
    users, record = users_of(values["owner"]), recording(values["workload"], "", values["no_record"])
    settings = named_store(resolve(given, config=values["config"]))
    try:
        target = request_of(values, ()).targets[0].path
    except FileNotFoundError:
        from imagefs.deps import host

        target, python = values["targets"][0], values["python"]
        lost = Request((), command_of(form, words, target, python), "", setup=setup_of(form, target, python))
        host.install_without("the working directory is gone", lost.argv, _tell)
    request = request_of(values, command_of(form, words, target, values["python"]))
    request = validate_request(request._replace(setup=setup_of(form, target, values["python"])))
    return _start(request, values, settings, users, record)


def named_store(settings: Settings) -> Settings:
    """The settings, for the store of dependency snapshots. Raises ConfigError where none is named."""
    if not settings.deps.store:
        raise ConfigError("no store is named", hint="give --store STORE, or set IMAGEFS_STORE")
    return settings._replace(store=settings.store_at(parse_store(settings.deps.store)))


def _start(
    request: Request, values: Mapping[str, Any], settings: Settings, users: list[tuple[int, int]], record: Recording
) -> int:
    from imagefs.deps.local import Scratch

    with Scratch([target.path for target in request.targets]) as scratch:
        status = _asked(request, values, settings, users, record, scratch)
    if status == INTERRUPTED:  # bash goes on with a script unless what it ran ended in this way
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _asked(
    request: Request,
    values: Mapping[str, Any],
    settings: Settings,
    users: list[tuple[int, int]],
    record: Recording,
    scratch: Scratch,
) -> int:
    from imagefs.deps import host
    from imagefs.deps.keybuilder import ask, unchanged

    locks, why = locks_of(settings, scratch.run), ""
    try:
        with events().begin("dependencies", "resolve"):
            answer = ask(request, locks, build=scratch.build, downloads=scratch.downloads)
        why = answer.found.reason if isinstance(answer.found, Refusal) else ""
    except (StripefsError, OSError) as error:
        why = str(error)
    if why:
        scratch.remove()  # the installer takes the place of this process
        _without(request, settings, why)
    assert isinstance(answer.found, Key)
    python = answer.facts.python
    host_request = host.HostRequest(
        settings.store,
        answer.found.to_document(),
        request.targets[0].path,
        request.argv,
        python.executable if python is not None else "python3",
        python.markers if python is not None else {},
        users,
        sites=("",) if _fills_directory(request.command) else (),
        beside=python.sites if python is not None else (),
        kept=values["keep"] or not users,
        wait=values["wait"],
        patience=settings.deps.patience,
        probe=values["probe"],
        checked=values["bytecode"] == "checked",
        allowed=values["allowed"],
        tolerant=values["tolerant"],
        setuid=values["setuid"],
        lock=answer.lock.to_document() if answer.lock is not None else None,
        locked_install=answer.locked_install,
        scratch=scratch,
        wheels=answer.wheels,
        forget=lambda: locks.forget(answer.locked_as),
        unchanged=lambda: unchanged(request, answer),
        recording=record,
        tree=TreeOptions(plane=values["plane"], backing=values["backing"]),
    )
    return host.run(Client(settings.daemon, settings.asked), host_request, _tell)


def _without(request: Request, settings: Settings, reason: str) -> NoReturn:
    """Become the installer. A later start does not remove the files that it leaves in the target."""
    from imagefs.deps import host
    from imagefs.deps.target import TargetDirectory

    with contextlib.suppress(OSError):
        TargetDirectory(request.targets[0].path, settings.daemon.cache).hand_over()
    host.install_without(reason, request.argv, _tell)


def _fills_directory(command: Sequence[str]) -> bool:
    """Tells whether packages go directly into a directory, as with `--target` of pip and uv."""
    return any(word in ("--target", "-t") or word.startswith("--target=") for word in command)


def _tell(text: str) -> None:
    tell(printable(text), program="imagefs deps")
