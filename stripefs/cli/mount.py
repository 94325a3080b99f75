"""`stripefs mount SOURCE MOUNTPOINT` and `stripefs umount MOUNTPOINT`."""

from __future__ import annotations

import os
import select
import shlex

import click

from stripefs.cli import mounting
from stripefs.cli.commands import SettingsCommand, config_flag, given, mountpoints, settings_flags
from stripefs.cli.mounting import SUDO, expand, mounted_at
from stripefs.errors import MountError
from stripefs.fuse.control import find_mounts
from stripefs.fuse.mounting import FSTYPE, unmount

__all__ = ["mount_command", "umount_command"]


@click.command("mount", cls=SettingsCommand)
@click.argument("source")
@click.argument("mountpoint", type=click.Path())
@click.option("-f", "--foreground", is_flag=True, help="Stay until the mount ends, and log to standard error.")
@click.option("-o", "words", multiple=True, metavar="A,B=C", help="The same options, the way mount(8) writes them.")
@config_flag
@settings_flags("store", "read", "write", "cache", "mount")
@click.pass_context
def mount_command(
    ctx: click.Context, source: str, mountpoint: str, foreground: bool, words: tuple[str, ...], config: str
) -> int:
    """Show the files of SOURCE (hdfs://…, s3://…, file://… or a directory) below the empty directory MOUNTPOINT.

    Comes back when the mount answers and leaves it to a process in the background; `stripefs umount` ends it.
    """
    options = expand(words)
    if options.read_write is not None:
        options.given["rw"] = ("true", "-o rw") if options.read_write else ("false", "-o ro")
    options.config = config or options.config
    settings = mounting.prepare(source, mountpoint, options, given(ctx))
    return mounting.start(settings, foreground=foreground)


_ENDS_WITHIN = 60.0
"""Seconds for a supervisor to end once its mount is gone: a worker lets go of threads that wait for dead servers."""


@click.command("umount", cls=SettingsCommand)
@click.argument("mountpoint", shell_complete=mountpoints)
@click.option("-l", "--lazy", is_flag=True, help="Hide the mount now; it ends when the last file is closed.")
@settings_flags(also=["log-level"])
def umount_command(mountpoint: str, lazy: bool) -> None:
    """Take the mount at MOUNTPOINT away and wait until its processes are gone.

    Also clears a mount whose processes have died.
    """
    mount = mounted_at(mountpoint)
    if mount is None or mount.fstype != FSTYPE:
        what = "is not mounted" if mount is None else f"is a mount of type {mount.fstype}"
        raise MountError(f"{mountpoint} {what}", hint="stripefs status lists the mounts of stripefs")
    supervisor = next((m.supervisor_pid for m in find_mounts() if m.mountpoint == mount.path), 0)
    process = _process_descriptor(supervisor)
    try:
        _unmount(mount.path, lazy)
        if process is not None and not lazy and not select.select([process], [], [], _ENDS_WITHIN)[0]:
            raise MountError(f"{mount.path} is unmounted, but process {supervisor} has not ended", hint="see its log")
    finally:
        if process is not None:
            os.close(process)


def _process_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when that process ends; None when there is no such process."""
    try:
        return os.pidfd_open(pid) if pid else None
    except ProcessLookupError:
        return None


def _unmount(path: str, lazy: bool) -> None:
    """Raises MountError."""
    try:
        unmount(path, lazy=lazy)
    except MountError as error:
        hint = error.hint or f"the user who mounted it can do that, or root: {SUDO} umount {shlex.quote(path)}"
        raise MountError(error.message, hint=hint) from error
