"""`imagefs daemon`."""

from __future__ import annotations

import time

import click

from imagefs.cli.options import settings_of
from imagefs.config import IMAGEFS
from imagefs.settings import DaemonSettings
from stripefs.cli.flags import SettingsCommand, settings_flags
from stripefs.errors import ConfigError

__all__ = ["command"]

_ENDS_WITHIN = 10.0
"""Seconds for a daemon to be gone after it was told to."""


@click.command("daemon", cls=SettingsCommand)
@click.option(
    "--stop",
    is_flag=True,
    help="End the daemon that runs; mounts that read through it wait ten minutes for the next one.",
)
@click.option("--force", is_flag=True, help="With --stop: such mounts answer EIO from then on.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("daemon", "services", options=IMAGEFS)
@click.pass_context
def command(ctx: click.Context, stop: bool, force: bool, config: str) -> int:
    """Serve the images of this host, in the foreground, until SIGTERM; for systemd (Type=notify).

    `imagefs mount` and `imagefs run` start one in the background when none runs.
    """
    settings = settings_of(ctx, config=config).daemon
    from imagefs.daemon import launcher

    if stop:
        return _stop(settings, force=force)
    if force:
        raise ConfigError("--force says how to stop", hint="imagefs daemon --stop --force")
    from stripefs import logs
    from stripefs.systemd import notify

    logs.configure(settings.log_format, settings.log_level, settings.log_file, "imagefs")

    def ready() -> None:
        notify("READY=1")

    return launcher.serve(settings, ready=ready)


def _stop(settings: DaemonSettings, *, force: bool) -> int:
    from imagefs.daemon import launcher
    from imagefs.daemon.client import Client, NoDaemon

    try:
        Client(settings).stop(force=force)
    except NoDaemon:
        if not (force and launcher.end_kept(settings)):
            raise
        return 0
    end = time.monotonic() + _ENDS_WITHIN
    while launcher.running(settings) is not None and time.monotonic() < end:
        time.sleep(0.05)
    if not force and launcher.is_kept(settings):
        click.echo(
            f"mounts still read through it: they wait up to {launcher.KEEP / 60:g} minutes for the next daemon, "
            "which `imagefs daemon` starts; --stop --force ends them",
            err=True,
        )
    return 0
