"""TOML files of settings: read, told from files of other versions, and their values reduced to text.

A file says `version = 1`; all else in it is the business of whoever declares the options.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stripefs.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["as_text", "documents"]


def documents(
    program: str, environ: Mapping[str, str], files: Iterable[str | Path], config: str
) -> Iterator[tuple[str | Path, dict[str, Any]]]:
    """The files of a program that are there, in their order, with what they hold but for the version.

    files: those that are read unless `config` or the variable PROGRAM_CONFIG names one. Raises ConfigError.
    """
    variable = f"{program.upper()}_CONFIG"
    named = config or environ.get(variable, "")
    for file in [os.path.expanduser(named)] if named else files:
        try:
            with open(file, "rb") as opened:
                content = opened.read()
            import tomllib  # not every command has a file to read

            document = tomllib.loads(content.decode())
        except FileNotFoundError:
            if named:
                raise ConfigError(f"{file} does not exist", hint=f"check --config and {variable}") from None
            continue
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        except ValueError as error:  # not UTF-8, or not TOML
            raise ConfigError(f"{file} is not TOML: {error}") from error
        version = document.pop("version", None)
        if version != 1 or isinstance(version, bool):
            what = "has no version" if version is None else f"has version {version!r}"
            raise ConfigError(f"{file} {what}", hint=f"this {program} reads files that say version = 1")
        yield file, document


def as_text(value: object, origin: str, *, many: bool = False) -> str:
    """A value as a user would write it on a command line. many: a list of texts is joined with commas."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if many and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    raise ConfigError(f"{origin} must be text, a number, true or false")
