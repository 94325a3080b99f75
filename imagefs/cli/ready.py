"""`imagefs ready DIR`."""

from __future__ import annotations

import json
import os

import click

from imagefs.cli.options import daemon_flags, settings_of
from imagefs.cli.words import judged
from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("ready", cls=SettingsCommand)
@click.argument("mount", metavar="MOUNTPOINT|ID")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@daemon_flags
@click.pass_context
def command(ctx: click.Context, mount: str, as_json: bool) -> None:
    """Say that the job in the image mounted at MOUNTPOINT (or attached as ID) has started.

    What it touched until now becomes a trace for the next starts, and what was fetched ahead is judged.
    """
    from imagefs.daemon.client import Client
    from imagefs.startup.emission import events

    which = os.path.realpath(mount) if os.sep in mount or os.path.isdir(mount) else mount
    figures = Client(settings_of(ctx).daemon).ready(which)
    events().instant("ready")
    click.echo(json.dumps(figures, indent=2) if as_json else judged(figures))
