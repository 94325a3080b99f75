"""Mount specification for a supervisor: the program of its workers, the payload of that program, the mountpoint."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from stripefs.errors import ConfigError
from stripefs.settings import MountSettings, Settings, known, mount_settings

__all__ = ["MountSpec", "store_mount_spec"]


class MountSpec(NamedTuple):
    """One mount to keep.

    program: the module that a worker runs. payload: data for that program alone. source: the source in the mount table
    until a worker knows better. command: whose mount it is, for its type (fuse.COMMAND) and for messages.
    directory and name: of its control files and its log; "" for the usual directory and a
    name made of the mountpoint. owner: the process with whose end the mount ends, 0 for none. keep: seconds for which
    the connection is kept for another supervisor where this one ends while the mount is in use
    (`stripefs.fuse.keeper`).
    """

    program: str
    payload: str
    source: str
    mount: MountSettings
    command: str = "stripefs"
    directory: str = ""
    name: str = ""
    owner: int = 0
    keep: float = 0.0

    @property
    def fstype(self) -> str:
        return f"fuse.{self.command}"

    @property
    def resolved(self) -> str:
        """The mountpoint without links. Where a mount may wait for this supervisor, it is not asked: its last name must
        be no link."""
        if not self.keep:
            return os.path.realpath(self.mount.mountpoint)
        parent, name = os.path.split(os.path.abspath(self.mount.mountpoint))
        return os.path.join(os.path.realpath(parent), name)

    def at(self, mountpoint: str) -> MountSpec:
        """The same spec at another mountpoint."""
        return self._replace(mount=self.mount._replace(mountpoint=mountpoint))

    def logging_to(self, file: str) -> MountSpec:
        """The same spec with another log file."""
        return self._replace(mount=self.mount._replace(log_file=file))

    def to_json(self) -> str:
        return json.dumps({**self._asdict(), "mount": self.mount._asdict()})

    @classmethod
    def from_json(cls, text: str) -> MountSpec:
        """The inverse of `to_json`; it ignores fields of other versions. Raises ConfigError for anything else."""
        try:
            data = json.loads(text)
            return cls(**{**known(cls, data), "mount": mount_settings(data["mount"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the job is not readable: {error}") from error


def store_mount_spec(settings: Settings) -> MountSpec:
    """The mount of a store that `settings` describe."""
    return MountSpec("stripefs.fuse.store_worker", settings.to_json(), settings.store.url, settings.mount)
