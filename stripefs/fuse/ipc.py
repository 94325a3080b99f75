"""Messages between supervisor and worker: JSON on a SEQPACKET socketpair, with descriptors where needed.

supervisor → worker   start   command, payload, mount, first, kept, facts, …   what to serve
                      serve   init (hex), the device descriptor                 the file system is mounted: begin
                      facts   facts                                             for `status`
                      ping                                                      are you there
worker → supervisor   ready   source, kept                                     the source answers
                      failed  kind, message, hint                               it does not: nothing to mount
                      serving                                                   INIT is answered
                      stop    force                                             someone asked for the end
                      alive                                                     the answer to a ping

A `MountSpec` is what a supervisor starts from: the program of its workers, the payload of that program, the mountpoint.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from stripefs import errors
from stripefs.errors import ConfigError
from stripefs.settings import MountSettings, Settings, known, mount_settings

__all__ = ["MountSpec", "describe_error", "pair", "rebuild_error", "receive", "send", "store_mount_spec"]


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


_LARGEST = 1 << 18
_DESCRIPTORS = 16


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises OSError when the other side is gone."""
    socket.send_fds(channel, [json.dumps(message).encode()], list(descriptors))


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors, close-on-exec. Raises EOFError when the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, _LARGEST, _DESCRIPTORS)
    except ConnectionResetError:
        data, descriptors = b"", []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not data:
        raise EOFError
    return json.loads(data), descriptors


def describe_error(error: errors.StripefsError) -> dict[str, Any]:
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)
    facts = {"kind": kind, "message": error.message, "hint": error.hint}
    return {**facts, "exit_code": error.exit_code, "errno": error.errno}


def rebuild_error(message: dict[str, Any]) -> errors.StripefsError:
    """The inverse of `describe_error`; a class that is not public becomes its nearest public one."""
    kind = getattr(errors, message["kind"])
    error: errors.StripefsError = kind(message["message"], hint=message["hint"])
    error.exit_code, error.errno = message["exit_code"], message["errno"]
    return error
