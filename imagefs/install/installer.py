"""Puts units where systemd finds them, and takes them away again. What somebody edited is not touched unasked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from imagefs.install.units import SERVICES, is_unedited
from stripefs.errors import ConfigError
from stripefs.osutil import atomic_file

__all__ = ["FOLDER", "Outcome", "command_path", "install", "reload", "remove"]

FOLDER = "etc/systemd/system"
"""Below the prefix, which is / for this host."""

Outcome = Literal["written", "updated", "unchanged", "removed", "absent"]


def command_path(name: str) -> str:
    """The absolute path of a command of this installation. Raises ConfigError."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise ConfigError(f"the command {name} is neither beside {sys.executable} nor on PATH", hint="use --bin DIR")
    return os.path.abspath(found)


def install(units: Mapping[str, str], prefix: str, *, force: bool = False) -> dict[str, Outcome]:
    """Write these units below `prefix`; what became of each. All or none: an edited one is found before the first.

    Raises ConfigError for a unit that somebody edited, unless forced, and where nothing can be written.
    """
    folder = Path(prefix, FOLDER)
    found = {name: _read(folder / name) for name in units}
    _spare_edited(folder, {name: text for name, text in found.items() if text != units[name]}, force=force)
    outcomes: dict[str, Outcome] = {}
    for name, text in units.items():
        if found[name] == text:
            outcomes[name] = "unchanged"
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(folder / name) as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(text.encode())
        except OSError as error:
            raise ConfigError(f"{folder / name} cannot be written: {error.strerror}", hint="run it as root") from error
        outcomes[name] = "written" if found[name] is None else "updated"
    return outcomes


def remove(names: Sequence[str], prefix: str, *, force: bool = False) -> dict[str, Outcome]:
    """Remove these units; what became of each. Raises ConfigError as `install` does."""
    folder = Path(prefix, FOLDER)
    found = {name: _read(folder / name) for name in names}
    _spare_edited(folder, found, force=force)
    outcomes: dict[str, Outcome] = {}
    for name, text in found.items():
        if text is not None:
            try:
                (folder / name).unlink()
            except OSError as error:
                raise ConfigError(
                    f"{folder / name} cannot be removed: {error.strerror}", hint="run it as root"
                ) from error
        outcomes[name] = "absent" if text is None else "removed"
    return outcomes


def reload(action: Literal["", "enable", "disable"] = "") -> None:
    """Let systemd read its units again; with an action, enable and start the services, or disable and stop them.

    Raises ConfigError where systemd does not run, or says no.
    """
    reread, change = ["systemctl", "daemon-reload"], ["systemctl", action, "--now", *SERVICES]
    steps = {"": [reread], "enable": [reread, change], "disable": [change, reread]}[action]
    for command in steps:
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise ConfigError(
                f"systemctl cannot be run: {error.strerror}", hint="start the services yourself"
            ) from error
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise ConfigError(f"{' '.join(command)}: {said[0] if said else 'failed'}", hint="see journalctl -xe")


def _read(path: Path) -> str | None:
    """The text of a file, None where there is none. Raises ConfigError."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="move it away") from error


def _spare_edited(folder: Path, found: Mapping[str, str | None], *, force: bool) -> None:
    for name, text in found.items():
        if text is not None and not is_unedited(text) and not force:
            raise ConfigError(
                f"{folder / name} is not as `imagefs install` wrote it",
                hint=f"keep your changes by `systemctl edit {name}`, or give them up with --force",
            )
