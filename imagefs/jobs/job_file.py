"""A job in one TOML file: the flags of `imagefs run` as keys, the image and the command (docs/jobs.md shows one).

There is no second list of keys: they are the flags that the caller names. Errors name the file, the line and the key.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagefs.reference import parse_reference
from stripefs.cli.fastpath import Flag
from stripefs.errors import ConfigError, StripefsError
from stripefs.options import Given, Option, Options

__all__ = ["JobFile", "read"]

IMAGE, COMMAND, ENV = "image", "command", "env"

_KEY = re.compile(r"""\s*\[?\s*["']?([A-Za-z0-9_-]+)["']?\s*[=\].]""")
_FLAG = re.compile(r"--([a-z][a-z-]*)")


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
        merged[ENV] = [*self.values.get(ENV, ()), *(values[ENV] if ENV in said else ())]
        return [*self.words, *words], merged, {**self.given, **given}

    @contextlib.contextmanager
    def told(self, said: Collection[str]) -> Iterator[None]:
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


def read(path: str, flags: Sequence[Flag], options: Options, sections: Sequence[str]) -> JobFile:
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
    words: dict[str, list[str]] = {IMAGE: [], COMMAND: []}
    values: dict[str, Any] = {}
    given: dict[str, tuple[str, str]] = {}
    for key, value in document.items():
        name = key.replace("_", "-")
        where = f"{path}:{lines.get(name, 1)}: {key}"
        if name != key and name in document:
            raise ConfigError(f"{where} is given twice", hint=f"as {name} too")
        if name in words:
            words[name] = _texts(value, where) if name == COMMAND else [_text(value, where)]
        elif name in by_name:
            values[by_name[name].field] = _value(by_name[name], value, where)
        elif name in settings:
            given[name] = (_setting(settings[name], value, where), where)
        else:
            known = [*by_name, *settings, *words]
            raise ConfigError(f"{where} is no key of a job", hint=options.nearest(name, known))
    if words[COMMAND] and not words[IMAGE]:
        raise ConfigError(
            f"{path}:{lines.get(COMMAND, 1)}: {COMMAND} is given without an image", hint='image = "…#TAG"'
        )
    if words[IMAGE]:
        try:
            parse_reference(words[IMAGE][0])
        except ConfigError as error:
            raise ConfigError(f"{path}:{lines.get(IMAGE, 1)}: {IMAGE}: {error.message}", hint=error.hint) from error
    return JobFile(path, [*words[IMAGE], *words[COMMAND]], values, given, lines)


def _lines(text: str) -> dict[str, int]:
    """The line in which each key is first seen, by its name with hyphens."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _KEY.match(line):
            found.setdefault(match[1].replace("_", "-"), number)
    return found


def _value(flag: Flag, value: object, where: str) -> Any:
    if flag.name == ENV and isinstance(value, dict):
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
