"""`imagefs install`: the services of a host as units of systemd, their text and its installation.

The common part of the units follows from what is served. Mounts must be seen by containerd, so nothing here gives a
service a mount namespace of its own (PrivateTmp=, ProtectSystem= and their like would). A supervisor unmounts in its
own order, so only it gets the signal to stop (KillMode=mixed), and workers end with it. The daemon's keeper must
outlive even that (KillMode=process), because it has what running containers read through. Containers wait for these
services, so they are restarted whatever ended them, as often as it takes, and are among the last that the kernel kills
for memory.

Units are put where systemd finds them, and taken away again. A unit that somebody edited is not touched unasked.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from stripefs.errors import ConfigError
from stripefs.osutil import atomic_file

__all__ = [
    "DAEMON",
    "FOLDER",
    "SERVICES",
    "SNAPSHOTTER",
    "STRIPEFS",
    "UnitOutcome",
    "command_path",
    "install",
    "is_unedited",
    "reload",
    "remove",
    "signed",
    "units",
]

DAEMON = "imagefs.service"
SNAPSHOTTER = "imagefs-snapshotter.service"
STRIPEFS = "stripefs@.service"
SERVICES = (DAEMON, SNAPSHOTTER)
"""The services that are enabled; a mount of stripefs is enabled by its user."""

_DAEMON = """\
[Unit]
Description=Blocks of lazy container images
After=local-fs.target network.target
Before=containerd.service
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={imagefs} daemon
# Replaces the worker under the live mounts. A restart harms no mount either: readers wait for the next daemon.
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
OOMPolicy=continue
Restart=always
RestartSec=1
TimeoutStartSec=60
TimeoutStopSec=60
WatchdogSec=60
{common}
[Install]
WantedBy=multi-user.target containerd.service
"""
_SNAPSHOTTER = """\
[Unit]
Description=Snapshotter of containerd for lazy container images
After=local-fs.target network.target {daemon}
Wants={daemon}
Before=containerd.service
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={imagefs} snapshotter
KillMode=mixed
Restart=always
RestartSec=1
TimeoutStartSec=60
TimeoutStopSec=60
WatchdogSec=60
{common}
[Install]
WantedBy=multi-user.target containerd.service
"""
_STRIPEFS = """\
# /etc/bootseer/mounts/NAME.env says SOURCE=hdfs://namenode:8020/NAME (and any STRIPEFS_* variable); NAME is mounted at
# /mnt/NAME: systemctl enable --now stripefs@NAME
[Unit]
Description=stripefs mount of %i
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
EnvironmentFile=/etc/bootseer/mounts/%i.env
ExecStartPre=/bin/mkdir -p /mnt/%i
ExecStart={stripefs} mount --foreground ${{SOURCE}} /mnt/%i
# Replaces the worker under the live mount: after an upgrade, or to let go of its memory.
ExecReload=/bin/kill -HUP $MAINPID
ExecStopPost=-/bin/umount -l /mnt/%i
KillMode=mixed
Restart=on-failure
RestartSec=5
TimeoutStartSec=120
TimeoutStopSec=120
WatchdogSec=60
{common}
[Install]
WantedBy=multi-user.target
"""
_COMMON = """\
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
OOMScoreAdjust=-999
"""
_SIGNATURE = "# Written by `imagefs install`, which overwrites it; own settings belong into `systemctl edit {}`. {}\n"
_SIGNED = re.compile(_SIGNATURE.format(r"\S+", "([0-9a-f]{16})"))


def units(imagefs: str, stripefs: str) -> dict[str, str]:
    """By file name, the text of each unit. imagefs, stripefs: absolute paths of the commands."""
    values = {"imagefs": _escaped(imagefs), "stripefs": _escaped(stripefs), "daemon": DAEMON, "common": _COMMON}
    texts = {DAEMON: _DAEMON, SNAPSHOTTER: _SNAPSHOTTER, STRIPEFS: _STRIPEFS}
    return {name: signed(name, text.format(**values)) for name, text in texts.items()}


def signed(name: str, text: str) -> str:
    """`text` below a line by which `is_unedited` knows it again."""
    return _SIGNATURE.format(name, _digest(text)) + text


def is_unedited(text: str) -> bool:
    """Tells whether `signed` made this text, of this version or of another, and nobody has changed it since."""
    found = _SIGNED.match(text)
    return found is not None and _digest(text[found.end() :]) == found[1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _escaped(path: str) -> str:
    """A path as one word of ExecStart=: specifiers (%) and variables ($) are doubled, a space needs quotes."""
    quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{quoted}"' if re.search(r"[\s\"'\\;]", path) else quoted


FOLDER = "etc/systemd/system"
"""Below the prefix, which is / for this host."""

UnitOutcome = Literal["written", "updated", "unchanged", "removed", "absent"]


def command_path(name: str) -> str:
    """The absolute path of a command of this installation. Raises ConfigError."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise ConfigError(f"the command {name} is neither beside {sys.executable} nor on PATH", hint="use --bin DIR")
    return os.path.abspath(found)


def install(units: Mapping[str, str], prefix: str, *, force: bool = False) -> dict[str, UnitOutcome]:
    """Write these units below `prefix`; what became of each. All or none: an edited one is found before the first.

    Raises ConfigError for a unit that somebody edited, unless forced, and where nothing can be written.
    """
    folder = Path(prefix, FOLDER)
    found = {name: _read(folder / name) for name in units}
    _spare_edited(folder, {name: text for name, text in found.items() if text != units[name]}, force=force)
    outcomes: dict[str, UnitOutcome] = {}
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


def remove(names: Sequence[str], prefix: str, *, force: bool = False) -> dict[str, UnitOutcome]:
    """Remove these units; what became of each. Raises ConfigError as `install` does."""
    folder = Path(prefix, FOLDER)
    found = {name: _read(folder / name) for name in names}
    _spare_edited(folder, found, force=force)
    outcomes: dict[str, UnitOutcome] = {}
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
