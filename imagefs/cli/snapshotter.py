"""`imagefs snapshotter`."""

from __future__ import annotations

import click

from imagefs.cli.options import settings_of
from imagefs.cli.snapshotter_config import config as config_command
from imagefs.config import IMAGEFS
from stripefs.cli.flags import SettingsCommand, settings_flags

__all__ = ["command"]


class _Group(SettingsCommand, click.Group):
    """A service that has commands too; its page lists flags by section, then the commands."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group("snapshotter", cls=_Group, invoke_without_command=True)
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("snapshotter", "services", also=["runtime", "log-format", "log-level", "log-file"], options=IMAGEFS)
@click.pass_context
def command(ctx: click.Context, config: str) -> int:
    """Start containerd's containers from lazy images: serve its snapshots service, in the foreground, until SIGTERM.

    For systemd (Type=notify) or a DaemonSet. `imagefs daemon` mounts the images; either may be restarted alone.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    settings = settings_of(ctx, config=config)
    from imagefs.snapshotter.server import run
    from stripefs import logs

    daemon = settings.daemon
    logs.configure(daemon.log_format, daemon.log_level, daemon.log_file, "imagefs")
    return run(settings.snapshotter, daemon, settings.store_at, settings.deps.store)


command.add_command(config_command)
