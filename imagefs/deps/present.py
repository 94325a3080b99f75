"""What pip finds installed before it begins, and so does not install: a snapshot without it would lack it elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from imagefs.deps.command import Call
from imagefs.deps.request import Python

__all__ = ["distributions", "searched"]

_ANEW = frozenset(("target", "ignore-installed", "force-reinstall"))
"""Options with which pip installs all that it is asked for."""

_BESIDE = frozenset(("prefix", "root", "user"))
"""Options with which it looks at what its own interpreter has, and installs elsewhere."""

_SHORT = {"-t": "target", "-I": "ignore-installed"}


def searched(call: Call, settings: Iterable[str], environ: Mapping[str, str], python: Python | None) -> list[str]:
    """Directories whose distributions this call does not install once more.

    settings: names of options that are set beside the command.
    """
    options = {_SHORT.get(one, one.lstrip("-")) for one in call.switches} | set(settings)
    if call.tool != "pip" or options & _ANEW:
        return []
    folders = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if python is not None and options & _BESIDE:
        folders += [*python.sites, _of_user(environ, python)]
    return folders


def distributions(folders: Iterable[str]) -> list[str]:
    """What is installed there, as `NAME-VERSION`, sorted."""
    return sorted({name for folder in folders for name in _distributions(folder)})


def _of_user(environ: Mapping[str, str], python: Python) -> str:
    base = environ.get("PYTHONUSERBASE") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local")
    return os.path.join(base, "lib", f"python{python.markers.get('python_version', '')}", "site-packages")


def _distributions(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []  # pip finds nothing there either
    return [stem for stem, suffix in map(os.path.splitext, names) if suffix in (".dist-info", ".egg-info", ".egg")]
