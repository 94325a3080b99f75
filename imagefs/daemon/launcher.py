"""The launcher of the daemon: starts it under a supervisor, and makes sure that there is one of it.

One daemon serves a runtime folder. A process that starts one holds the lock there until it answers, so of two that
start at once the second finds the first; the daemon holds the lock too, so that it is waited for when who started it
was killed. Where the last daemon ended while mounts read through it, the next one goes on serving them
(`stripefs.fuse.keeper`); any other mount of devices that is left is taken away before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from imagefs.settings import DaemonSettings, devices_mount
from stripefs import extras
from stripefs.errors import ConfigError, MountError
from stripefs.fuse import keeper, kernel
from stripefs.fuse.control import Mount, find_mounts, make_directory
from stripefs.fuse.ipc import MountSpec
from stripefs.osutil import flocked
from stripefs.settings import MountSettings

__all__ = ["KEEP", "daemon_job", "end_kept", "ensure", "is_kept", "running", "serve"]

_NAME = "imagefs"
_PACKAGES = ("pyfuse3", "lz4")
"""Packages of two extras that the worker imports. It ends without a word to the client where one is missing."""

KEEP = 600.0
"""Seconds for which mounts that read through a daemon which ended wait for the next: an upgrade takes as long."""


def daemon_job(settings: DaemonSettings) -> MountSpec:
    """The daemon as a job for a supervisor. Raises ConfigError where its worker cannot run."""
    if sys.byteorder != "little":
        raise ConfigError("the imagefs daemon needs a little-endian machine")
    for package in _PACKAGES:
        extras.require(package)
    return MountSpec(
        program="imagefs.daemon.worker",
        payload=settings.to_json(),
        source="imagefs",
        mount=MountSettings(
            mountpoint=settings.devices,
            # Programs of an image read its devices through EROFS; the files themselves are the owner's alone.
            allow_other=os.geteuid() == 0,
            read_ahead_kb=settings.read_ahead_kb,
            max_background=settings.max_background,
            metrics=settings.metrics,
            log_format=settings.log_format,
            log_level=settings.log_level,
            log_file=settings.log_file,
        ),
        command="imagefs",
        directory=settings.runtime,
        name=_NAME,
        keep=KEEP,
    )


def is_kept(settings: DaemonSettings) -> bool:
    """Tells whether mounts wait for the next daemon of this runtime folder. Raises MountError where that is unknown."""
    return keeper.is_waiting(keeper.keeper_path(Path(settings.runtime), _NAME))


def end_kept(settings: DaemonSettings) -> bool:
    """Have mounts that wait for the next daemon answer EIO instead; whether there were any. Raises MountError."""
    return keeper.end(keeper.keeper_path(Path(settings.runtime), _NAME))


def running(settings: DaemonSettings) -> Mount | None:
    """The daemon of this runtime folder, if one answers."""
    here = devices_mount(settings)
    return next((one for one in find_mounts(Path(settings.runtime)) if one.mountpoint == here), None)


def ensure(settings: DaemonSettings) -> bool:
    """Start the daemon in the background unless it runs; whether it was started. Raises what kept it from that."""
    if running(settings) is not None:
        return False
    with _alone(settings) as lock:
        if running(settings) is not None:
            return False
        from stripefs.fuse import daemonize

        daemonize.start(daemon_job(settings), lock=lock)
    return True


def serve(settings: DaemonSettings, *, ready: Callable[[], None]) -> int:
    """Be the daemon, in the foreground, until it is stopped; the exit status.

    Raises MountError when one runs already.
    """
    from stripefs.fuse import supervisor

    with contextlib.ExitStack() as starting:
        starting.enter_context(_alone(settings))
        if (other := running(settings)) is not None:
            raise MountError(
                f"an imagefs daemon serves {settings.runtime} already (pid {other.supervisor_pid})",
                hint="imagefs status shows it; another one needs --runtime and --cache of its own",
            )

        def answers() -> None:
            starting.close()
            ready()

        return supervisor.serve(daemon_job(settings), ready=answers)


@contextlib.contextmanager
def _alone(settings: DaemonSettings) -> Iterator[int]:
    """Hold the lock of the start of a daemon, whose mountpoint is there and free. Answers the lock's descriptor."""
    folder = make_directory(Path(settings.runtime))
    with flocked(folder / "imagefs.lock") as lock:
        _clear(settings)
        yield lock


def _clear(settings: DaemonSettings) -> None:
    """Take away the mount of a daemon that is gone, unless it is kept for the next one; images that are mounted through
    it stay dead until remounted."""
    if running(settings) is not None or is_kept(settings):
        return
    from stripefs.fuse import mounting

    here = devices_mount(settings)
    try:
        while (found := kernel.find_mount(here)) is not None and found.fstype == "fuse.imagefs":
            mounting.detach(here)
        os.makedirs(here, mode=0o700, exist_ok=True)
    except OSError as error:
        raise MountError(f"{here} cannot be used: {error.strerror}") from error
