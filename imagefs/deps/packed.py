"""The trial of what was packed, before anybody can find it: the image, mounted where it was installed, for the trial
alone.

The daemon serves the image as it will serve the snapshot. A child that is process 1 of a PID namespace mounts it in a
mount namespace of its own, over what was installed, which the job may be using; so nobody else sees it there, and it
goes with the child, however this process ends. Where that cannot be done, the trial is of what was installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagefs import containers
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps import trial
from imagefs.run import namespace
from imagefs.settings import DaemonSettings, TreeOptions
from stripefs.errors import MountError
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.run.container import MountLayer

__all__ = ["Probe", "Tried", "try_packed"]


class Probe(NamedTuple):
    """What is tried, in values that can be JSON: an interpreter, a program in Python for it, and where that runs.

    settings: fields of `DaemonSettings`. tree: fields of `TreeOptions`.
    """

    interpreter: str
    code: str
    folder: str
    settings: Mapping[str, Any]
    tree: Sequence[Any]


class Tried(NamedTuple):
    """How a trial went. failure: in one line, "" for none. unmounted: why it was not of what was packed, "" where it
    was."""

    failure: str
    unmounted: str = ""


def try_packed(probe: Probe, target: str, store: StoreSettings, image: str) -> Tried:
    """Try the image of this digest at `target`, where it was installed.

    Raises StripefsError for an image that the daemon cannot serve, and OSError.
    """
    try:
        return Tried(_mounted(probe, target, store, image))
    except MountError as error:
        failure = trial.failure(probe.interpreter, probe.code, target, probe.folder, trial.read_only(target))
        return Tried(failure, str(error))


def _mounted(probe: Probe, target: str, store: StoreSettings, image: str) -> str:
    """Why it fails, "" where it does not. Raises MountError where it cannot be mounted."""
    if os.geteuid() != 0:
        raise MountError("only root can mount it for the probe alone")
    client, tree = Client(DaemonSettings(**probe.settings)), TreeOptions(*probe.tree)
    with containers.attached(client, store, image, Recording(off=True), tree) as found, found.layer() as layer:
        try:
            with namespace.child(lambda told: _in_child(probe, target, layer, told)) as (child, report):
                told = b"".join(iter(lambda: os.read(report, 1 << 16), b""))
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except OSError as error:
            raise _unmounted(target, error) from error
    if not told:
        return f"the process that mounts for it ended with status {status}"
    failure, unmounted, hint = json.loads(told)
    if unmounted:
        raise MountError(unmounted, hint=hint)
    return str(failure)


def _in_child(probe: Probe, target: str, layer: MountLayer, told: int) -> None:
    failure = unmounted = hint = ""
    try:
        _mount(target, layer)
        failure = trial.failure(probe.interpreter, probe.code, target, probe.folder)
    except MountError as error:
        unmounted, hint = error.message, error.hint
    with open(told, "w", closefd=False) as file:
        json.dump([failure, unmounted, hint], file)


def _mount(target: str, layer: MountLayer) -> None:
    """For this process alone. Raises MountError."""
    try:
        namespace.private_mounts()
        layer(target)
    except OSError as error:
        raise _unmounted(target, error) from error


def _unmounted(target: str, error: OSError) -> MountError:
    return MountError(f"{target} cannot be mounted for the probe alone: {error.strerror}")
