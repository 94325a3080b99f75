"""From a URL and keyword arguments to `Settings`: the options of `stripefs mount`, with underscores in their names.

What is not given comes from the environment (`STRIPEFS_*`) and the TOML files, as for the command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from stripefs import config
from stripefs.settings import Settings
from stripefs.store.url import refuse_half_url

__all__ = ["SECTIONS", "absolute", "resolve"]

SECTIONS = ("store", "read", "write", "cache")
"""Parts of the settings that can be given; the others are about a mount."""


def resolve(url: str, options: Mapping[str, object]) -> Settings:
    """Settings of the source at `url`. `config` in the options names the one TOML file to read.

    Raises TypeError for what is no option, ConfigError for values that cannot be used.
    """
    given = {}
    for name, value in options.items():
        option = config.by_name(name) if name != "config" else None
        if option is not None and option.section in SECTIONS:
            given[option.name] = (_text(value), name)
        elif name != "config":
            known = [each.name.replace("-", "_") for each in config.OPTIONS if each.section in SECTIONS]
            raise TypeError(f"{name!r} is no option: {config.nearest(name, known)}")
    settings = config.resolve(given, url=absolute(url), config=str(options.get("config") or ""))
    return settings._replace(mount=Settings().mount)


def absolute(url: str) -> str:
    """A path made absolute, with links resolved, since a source is read without following any; a URL as it is."""
    refuse_half_url(url)
    return url if "://" in url else os.path.realpath(os.path.expanduser(url))


def _text(value: object) -> str:
    """What somebody would write on a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={word}" for key, word in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
