"""What is set for pip and uv outside of their command lines.

pip says itself what its configuration is (`pip config list`). uv has no such command: its `--show-settings` is hidden,
not stable, and prints the host's certificates. So of uv the files count as they are. Variables are read here. What
decides nothing about the result, such as time-outs and caches, is left out, and so is what is called like a secret;
URLs lose users and passwords. A setting that is not known here is kept: it may matter.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from imagefs.deps.urls import without_secrets
from stripefs.errors import ConfigError

__all__ = ["pip_settings", "said_by", "uv_files", "uv_table"]

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

_SECTIONS = ("global", "install")
"""Of pip's configuration files, those that hold for `pip install`, of which the later one wins."""


def said_by(variables: Mapping[str, str], tool: str) -> dict[str, list[str]]:
    """Options of pip or uv with their values, as variables say them."""
    found = {}
    for name, value in variables.items():
        if name.startswith(f"{tool.upper()}_") and value:
            option = name[len(tool) + 1 :].lower().replace("_", "-")
            several = tool == "uv" and option == "find-links"
            found[option] = [without_secrets(one) for one in (value.split(",") if several else value.split())]
    return {name: values for name, values in sorted(found.items()) if _counts(tool, name)}


def pip_settings(config: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Options of `pip install` with their values. config: what pip says of its configuration files."""
    found = {}
    for section in _SECTIONS:
        for name, value in config.items():
            if name.startswith(f"{section}."):
                found[name.removeprefix(f"{section}.")] = [without_secrets(word) for word in value.split()]
    found |= said_by(environ, "pip")
    return {name: values for name, values in sorted(found.items()) if _counts("pip", name)}


def uv_files(environ: Mapping[str, str], folder: str) -> Iterator[str]:
    """uv's configuration files that are there. folder: where it runs. Raises ConfigError for one that is no TOML."""
    if environ.get("UV_NO_CONFIG", "").lower() in ("1", "true", "yes", "on", "t", "y"):
        return
    if given := environ.get("UV_CONFIG_FILE"):
        yield given
        return
    for above in (Path(folder), *Path(folder).parents):
        own, project = above / "uv.toml", above / "pyproject.toml"
        if own.is_file():
            yield str(own)
            break
        if project.is_file() and uv_table(str(project)):
            yield str(project)
            break
    home = environ.get("HOME") or os.path.expanduser("~")
    systems = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    user = os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "uv", "uv.toml")
    if os.path.isfile(user):
        yield user
    for system in (*systems, "/etc"):
        path = os.path.join(system, "uv", "uv.toml")
        if os.path.isfile(path):
            yield path
            return


def uv_table(path: str) -> dict[str, Any]:
    """What a file says about uv. Raises ConfigError for one that uv could not read either."""
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path} is no configuration of uv: {why}") from error
    if os.path.basename(path) != "pyproject.toml":
        return document
    tool = document.get("tool")
    table = tool.get("uv") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _counts(tool: str, name: str) -> bool:
    return not (_SECRET.search(name) or (name in _IDLE_PIP if tool == "pip" else _IDLE_UV.fullmatch(name)))
