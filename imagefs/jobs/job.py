"""A job: its TOML file, and the events of its start.

The file has the flags of `imagefs run` as keys, the image and the command (docs/jobs.md shows one). There is no second
list of keys: they are the flags that the caller names. Errors name the file, the line and the key.

The events of a start lie in a folder, into which programs of the host and of the container write. Here are the names of
the start, what its container needs to add its own events, and the time of each stage.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagefs.errors import RunError
from imagefs.reference import parse_reference
from imagefs.run.options import Bind
from stripefs import startup_events
from stripefs.cli.fastpath import Flag
from stripefs.errors import ConfigError, StripefsError
from stripefs.options import Given, Option, Options
from stripefs.startup_events import ENV_ATTEMPT, ENV_FOLDER, ENV_JOB, ENV_NODE, ENV_RANK, ENV_RUN, STAGES, identity

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "COLLECTOR",
    "FOLDER",
    "IMAGEFS_COMMAND",
    "PROGRAM",
    "JobFile",
    "collected",
    "read_events",
    "read_job_file",
    "ready_at",
    "recorded",
    "stage_seconds",
]

_IMAGE, _COMMAND, _ENV = "image", "command", "env"

_KEY = re.compile(r"""\s*\[?\s*["']?([A-Za-z0-9_-]+)["']?\s*[=\].]""")
_FLAG = re.compile(r"--([a-z][a-z-]*)")

COLLECTOR = "BOOTSEER_COLLECTOR"
"""Names the collector folder."""

FOLDER, PROGRAM = "/run/imagefs/events", "/run/imagefs/startup_events.py"
"""Paths in a container of the folder of events, and of the program that writes them in any image with Python."""

IMAGEFS_COMMAND = (sys.executable, "-P", "-c", "import sys; from imagefs.cli.main import run; sys.exit(run())")
"""The command `imagefs`, whatever PATH holds."""


class JobFile(NamedTuple):
    """words: the image and its command. values: of flags, by field. given: settings, as flags say them. lines: where
    each flag is, by its name."""

    path: str
    words: Sequence[str]
    values: Mapping[str, Any]
    given: Given
    lines: Mapping[str, int]

    def under(
        self, words: Sequence[str], values: Mapping[str, Any], given: Given, said: Collection[str]
    ) -> tuple[list[str], dict[str, Any], Given]:
        """The file under a command line, whose flags come first: those in `said`, by field. Its words go behind those
        here, its variables beside those here."""
        merged = {**values, **{field: value for field, value in self.values.items() if field not in said}}
        merged[_ENV] = [*self.values.get(_ENV, ()), *(values[_ENV] if _ENV in said else ())]
        return [*self.words, *words], merged, {**self.given, **given}

    @contextlib.contextmanager
    def locating_errors(self, said: Collection[str]) -> Iterator[None]:
        """Errors in the block that name a flag name the line here instead, unless the command line gave it: `said`, by
        name."""
        try:
            yield
        except StripefsError as error:
            found = _FLAG.match(error.message)
            if found and found[1] in self.lines and found[1] not in said:
                error.message = f"{self.path}:{self.lines[found[1]]}: {error.message[2:]}"
                error.args = (error.message,)
            raise


def read_job_file(path: str, flags: Sequence[Flag], options: Options, sections: Sequence[str]) -> JobFile:
    """The job in the file at `path`. Raises ConfigError.

    Keys are the names of `flags`, and of the options in these sections that no flag is named like.
    """
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        document = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"job file {path}: {error.strerror}", hint="name a TOML file") from error
    except ValueError as error:
        raise ConfigError(f"job file {path}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"job file {path}: it is nested too deeply") from error
    lines = _lines(text)
    by_name = {flag.name: flag for flag in flags}
    settings = {one.name: one for one in options.all if one.section in sections and one.name not in by_name}
    words: dict[str, list[str]] = {_IMAGE: [], _COMMAND: []}
    values: dict[str, Any] = {}
    given: dict[str, tuple[str, str]] = {}
    for key, value in document.items():
        name = key.replace("_", "-")
        where = f"{path}:{lines.get(name, 1)}: {key}"
        if name != key and name in document:
            raise ConfigError(f"{where} is given twice", hint=f"as {name} too")
        if name in words:
            words[name] = _texts(value, where) if name == _COMMAND else [_text(value, where)]
        elif name in by_name:
            values[by_name[name].field] = _value(by_name[name], value, where)
        elif name in settings:
            given[name] = (_setting(settings[name], value, where), where)
        else:
            known = [*by_name, *settings, *words]
            raise ConfigError(f"{where} is no key of a job", hint=options.nearest(name, known))
    if words[_COMMAND] and not words[_IMAGE]:
        raise ConfigError(
            f"{path}:{lines.get(_COMMAND, 1)}: {_COMMAND} is given without an image", hint='image = "…#TAG"'
        )
    if words[_IMAGE]:
        try:
            parse_reference(words[_IMAGE][0])
        except ConfigError as error:
            raise ConfigError(f"{path}:{lines.get(_IMAGE, 1)}: {_IMAGE}: {error.message}", hint=error.hint) from error
    return JobFile(path, [*words[_IMAGE], *words[_COMMAND]], values, given, lines)


def _lines(text: str) -> dict[str, int]:
    """The line in which each key is first seen, by its name with hyphens."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _KEY.match(line):
            found.setdefault(match[1].replace("_", "-"), number)
    return found


def _value(flag: Flag, value: object, where: str) -> Any:
    if flag.name == _ENV and isinstance(value, dict):
        return tuple(f"{name}={_text(one, f'{where}.{name}')}" for name, one in value.items())
    if flag.kind in ("switch", "either"):
        if not isinstance(value, bool):
            raise ConfigError(f"{where} is true or false")
        return value
    if flag.kind == "texts":
        return tuple([_text(value, where)] if isinstance(value, str) else _texts(value, where))
    text = _text(value, where)
    if flag.choices and text not in flag.choices:
        raise ConfigError(f"{where} is {text!r}", hint=f"one of {', '.join(flag.choices)}")
    return text


def _setting(option: Option, value: object, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(_texts(value, where)) if option.many and not isinstance(value, str) else _text(value, where)


def _texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is no list", hint='write ["…", "…"]')
    return [_text(one, where) for one in value]


def _text(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where} is neither text nor a number")
    if "\0" in str(value):
        raise ConfigError(f"{where} has a zero byte in it")
    return str(value)


@contextlib.contextmanager
def collected(folder: str, url: str) -> Iterator[None]:
    """Copy the events in `folder` to the collector folder at `url` when the block ends. The program that copies tells
    of errors, which harm no job."""
    try:
        yield
    finally:
        import subprocess  # not needed by most, who have no collector

        command = [*IMAGEFS_COMMAND, "startup", "collect", "--quiet", os.path.abspath(folder), url]
        with contextlib.suppress(OSError):  # the machine is out of processes
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def recorded(folder: str, job: str, environ: MutableMapping[str, str]) -> Iterator[tuple[list[Bind], list[str]]]:
    """Have the programs of this start write their events to `folder`, which is made where it is missing: the variables
    of `environ` say so until the block ends. Answers the binds of a container, and its variables beside those that name
    the start. Raises RunError.

    job: the job's name where nothing else names it. A run that nothing names gets a name of its own.
    """
    folder = os.path.abspath(folder)
    try:
        os.makedirs(folder)
        os.chmod(folder, 0o1777)  # noqa: S103  the container's users are others
    except FileExistsError:
        if not os.path.isdir(folder):
            raise RunError(f"the folder of events {folder} is no directory") from None
    except OSError as error:
        raise RunError(f"the folder of events {folder} cannot be made: {error.strerror}") from error
    who = identity(environ)
    named = {
        ENV_FOLDER: folder,
        ENV_JOB: who.job or job,
        ENV_RUN: who.run or f"{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(3).hex()}",
        ENV_ATTEMPT: str(who.attempt),
        ENV_NODE: who.node,
        ENV_RANK: "" if who.rank is None else str(who.rank),
    }
    before = {name: environ[name] for name in named if name in environ}
    environ.update({name: text for name, text in named.items() if text})
    binds = [Bind(folder, FOLDER, made=True, inert=True), Bind(startup_events.__file__, PROGRAM, writable=False)]
    try:
        yield binds, [f"{ENV_FOLDER}={FOLDER}"]
    finally:
        for name in named:
            environ.pop(name, None)
        environ.update(before)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of one start; half a line at the end is one that is still being written."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("mono_ns"), int)]


def ready_at(folder: Path) -> int | None:
    """Time at which the job was ready, in nanoseconds of the monotonic clock: at the first `ready`, else when its first
    step ended; None while it is not.
    """
    events = read_events(folder)
    for stage, event in (("ready", "instant"), ("first_step", "end")):
        when = [one["mono_ns"] for one in events if (one.get("stage"), one.get("event")) == (stage, event)]
        if when:
            return int(min(when))
    return None


def stage_seconds(events: Sequence[Mapping[str, Any]], begun: int, until: int) -> dict[str, float]:
    """Seconds of each stage between these two: the time in which any of its spans was open."""
    ends = {one["span"]: one["mono_ns"] for one in events if one.get("event") == "end" and "span" in one}
    begins = [one for one in events if one.get("event") == "begin" and one.get("stage") in STAGES]
    reached, covered = dict.fromkeys(STAGES, begun), dict.fromkeys(STAGES, 0)
    for one in sorted(begins, key=lambda one: int(one["mono_ns"])):
        stage, end = one["stage"], min(int(ends.get(one.get("span"), until)), until)
        covered[stage] += max(0, end - max(int(one["mono_ns"]), reached[stage]))
        reached[stage] = max(reached[stage], end)
    return {stage: length / 1e9 for stage, length in covered.items() if length}
