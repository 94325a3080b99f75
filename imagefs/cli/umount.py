"""`imagefs umount DIR`."""

from __future__ import annotations

import click

from imagefs.cli.options import daemon_flags, settings_of
from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("umount", cls=SettingsCommand)
@click.argument("mountpoint", type=click.Path())
@click.option("-l", "--lazy", is_flag=True, help="Hide the mount now; it ends when the last file is closed.")
@daemon_flags
@click.pass_context
def command(ctx: click.Context, mountpoint: str, lazy: bool) -> None:
    """Take the image at MOUNTPOINT away, and with --rw what was written to it.

    Also clears a mount whose daemon has died.
    """
    from imagefs import mounts
    from imagefs.daemon.client import Client

    mounts.umount(Client(settings_of(ctx).daemon), mountpoint, lazy=lazy)
