"""`imagefs daemon`."""

from __future__ import annotations

import click

from imagefs.cli.options import settings_of
from imagefs.config import IMAGEFS
from stripefs.cli.flags import SettingsCommand, settings_flags

__all__ = ["command"]


@click.command("daemon", cls=SettingsCommand)
@click.option("--stop", is_flag=True, help="End the daemon that runs; images that need it answer EIO from then on.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("daemon", options=IMAGEFS)
@click.pass_context
def command(ctx: click.Context, stop: bool, config: str) -> int:
    """Serve the images of this host, in the foreground, until SIGTERM; for systemd (Type=notify).

    `imagefs mount` and `imagefs run` start one in the background when none runs.
    """
    settings = settings_of(ctx, config=config).daemon
    if stop:
        from imagefs.daemon.client import Client

        Client(settings).stop()
        return 0
    from imagefs.daemon import starting
    from stripefs import logs
    from stripefs.notify import notify

    logs.configure(settings.log_format, settings.log_level, settings.log_file, "imagefs")

    def ready() -> None:
        notify("READY=1")

    return starting.serve(settings, ready=ready)
