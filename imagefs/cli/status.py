"""`imagefs status`."""

from __future__ import annotations

import json

import click

from imagefs.cli.options import daemon_flags, settings_of
from imagefs.cli.words import describe
from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("status", cls=SettingsCommand)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@daemon_flags
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show the images of this host: where they are mounted, how much of them is here, how their starts went."""
    from imagefs.daemon.client import Client

    status = Client(settings_of(ctx).daemon).status()
    click.echo(json.dumps(status, indent=2) if as_json else describe(status))
