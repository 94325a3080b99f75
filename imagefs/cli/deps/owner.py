"""For whom something is mounted: until that process ends."""

from __future__ import annotations

import os

from imagefs.daemon import processes
from stripefs.errors import ConfigError

__all__ = ["users_of"]

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
