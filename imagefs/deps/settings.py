"""What is set for pip and uv outside of their command lines: variables and configuration files.

pip's files and variables are combined as pip does it (its documentation, "Configuration"), and so are those of uv
("Configuration files"). What decides nothing about the result, such as time-outs and caches, is left out, and so is
what is called like a secret; URLs lose users and passwords. A setting that is not known here is kept: it may matter.
"""

from __future__ import annotations

import configparser
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from imagefs.deps.urls import without_secrets
from stripefs.errors import ConfigError

__all__ = ["pip_settings", "said_by", "uv_settings"]

_SECRET = re.compile(r"token|passw|secret|username|credential")

_IDLE_PIP = frozenset((
    *("cache-dir", "cert", "client-cert", "config-file", "debug", "default-timeout", "disable-pip-version-check"),
    *("exists-action", "keyring-provider", "log", "log-file", "no-cache-dir", "no-color", "no-input"),
    *("no-python-version-warning", "progress-bar", "proxy", "quiet", "require-virtualenv", "resume-retries", "retries"),
    *("root-user-action", "timeout", "trusted-host", "use-feature", "verbose", "version", "help"),
))  # fmt: skip

_IDLE_UV = re.compile(
    r"cache.*|concurrent-.*|.*-timeout|http-.*|config-file|env-file|git-lfs|github-.*|init-.*|insecure-.*|install-.*|"
    r"internal-.*|keyring-.*|link-mode|log-.*|managed-python|native-tls|no-cache|no-config|no-env-file|no-progress|"
    r"no-wrap|offline|preview.*|project|publish-.*|python-.*dir|python-downloads.*|python-install-.*|python-cache-dir|"
    r"python-preference|request-.*|run-.*|show-.*|stack-size|system-certs|test-.*|tool-.*|unmanaged-.*|upload-.*|"
    r"allow-insecure-host|require(d-version)?|color"
)


def said_by(variables: Mapping[str, str], tool: str) -> dict[str, list[str]]:
    """Options of pip or uv with their values, as variables say them."""
    found = {}
    for name, value in variables.items():
        if name.startswith(f"{tool.upper()}_") and value:
            option = _option(name[len(tool) + 1 :])
            several = tool == "uv" and option == "find-links"
            found[option] = [without_secrets(one) for one in (value.split(",") if several else value.split())]
    return {name: values for name, values in found.items() if _counts(tool, name)}


def _counts(tool: str, name: str) -> bool:
    return not (_is_secret(name) or (name in _IDLE_PIP if tool == "pip" else _IDLE_UV.fullmatch(name)))


def pip_settings(environ: Mapping[str, str], prefix: str) -> dict[str, list[str]]:
    """Options of `pip install` with their values. prefix: of the interpreter that pip runs in, "" for none.

    Raises ConfigError for a file that pip could not read either.
    """
    found: dict[str, list[str]] = {}
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _pip_files(environ, prefix):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, ValueError) as error:
            raise ConfigError(f"{path} is no configuration of pip: {_first_line(error)}") from error
        for section, options in sections.items():
            if parser.has_section(section):
                options.update(parser.items(section))
    for options in sections.values():
        found.update({_option(name): _words(value) for name, value in options.items()})
    found.update(said_by(environ, "pip"))
    return {name: values for name, values in sorted(found.items()) if _counts("pip", name)}


def uv_settings(environ: Mapping[str, str], folder: str) -> dict[str, list[str]]:
    """Options of uv with their values, by variables, and by level and name of what files say. folder: where it runs.

    Raises ConfigError for a file that uv could not read either.
    """
    found = said_by(environ, "uv")
    for level, path in _uv_files(environ, folder):
        for name, text in _flat(_uv_table(path)):
            if _counts("uv", name.removeprefix("pip.").partition(".")[0]) and not _is_secret(name):
                if name.removeprefix("pip.") == "find-links" and "://" not in text:
                    text = os.path.relpath(os.path.join(os.path.dirname(path), text), folder)  # uv asks from there
                found.setdefault(f"{level}.{name}", []).append(without_secrets(text))
    return dict(sorted(found.items()))


def _pip_files(environ: Mapping[str, str], prefix: str) -> Iterator[str]:
    """pip's configuration files, each of which goes before those above it. Some may not be there."""
    home = environ.get("HOME") or os.path.expanduser("~")
    given = environ.get("PIP_CONFIG_FILE", "")
    if given == os.devnull:
        return
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield os.path.join(folder, "pip", "pip.conf")
    yield "/etc/pip.conf"
    if not (given and os.path.exists(given)):
        yield os.path.join(home, ".pip", "pip.conf")
        yield os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "pip", "pip.conf")
    if prefix:
        yield os.path.join(prefix, "pip.conf")
    if given:
        yield given


def _uv_files(environ: Mapping[str, str], folder: str) -> Iterator[tuple[str, str]]:
    """uv's configuration files that are there, with the level of each."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if environ.get("UV_NO_CONFIG", "").lower() in ("1", "true", "yes", "on", "t", "y"):
        return
    if given := environ.get("UV_CONFIG_FILE"):
        yield "file", given
        return
    for above in (Path(folder), *Path(folder).parents):
        own, project = above / "uv.toml", above / "pyproject.toml"
        if own.is_file():
            yield "project", str(own)
            break
        if project.is_file() and _uv_table(str(project)):
            yield "project", str(project)
            break
    user = os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "uv", "uv.toml")
    if os.path.isfile(user):
        yield "user", user
    for system in (*(environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep), "/etc"):
        if os.path.isfile(os.path.join(system, "uv", "uv.toml")):
            yield "system", os.path.join(system, "uv", "uv.toml")
            break


def _uv_table(path: str) -> Mapping[str, Any]:
    """What a file says about uv. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no configuration of uv: {_first_line(error)}") from error
    if os.path.basename(path) != "pyproject.toml":
        return document
    tool = document.get("tool")
    table = tool.get("uv") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The single values of a TOML document as texts, with their dotted names, in its order."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _flat(inner, name)
    else:
        yield name, str(value).lower() if isinstance(value, bool) else str(value)


def _option(name: str) -> str:
    return name.lower().replace("_", "-")


def _words(value: str) -> list[str]:
    return [without_secrets(word) for word in value.split()]


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
