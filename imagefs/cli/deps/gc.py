"""`imagefs deps gc`."""

from __future__ import annotations

import sys

import click

from imagefs.cli.common import flags, json_flag, print_json
from imagefs.cli.deps.common import snapshots_of
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import ConfigError
from stripefs.units import parse_duration

__all__ = ["command"]


@click.command("gc", cls=SettingsCommand)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go and remove nothing.")
@click.option("--older-than", default="30d", metavar="TIME", help="Spare what was used in that time.  [30d]")
@json_flag
@flags("deps", "store")
@click.pass_context
def command(ctx: click.Context, dry_run: bool, older_than: str, as_json: bool, config: str) -> None:
    """Take away the snapshots that nobody used for so long, and what a host that died had not published yet.

    A use is noted once a day, so a TIME below two days may take what is in use. The bytes stay until `imagefs gc`.
    """
    from imagefs.housekeeping.snapshots import collect_snapshots

    try:
        age = parse_duration(older_than)
    except ConfigError as error:
        raise ConfigError(f"--older-than: {error.message}") from error
    with snapshots_of(ctx, config) as images:
        snapshots, gone = collect_snapshots(images, older_than=age, dry_run=dry_run)
    if as_json:
        print_json({"snapshots": snapshots, "images": gone})
        return
    sys.stdout.writelines([f"snapshot {name}\n" for name in snapshots] + [f"image {digest}\n" for digest in gone])
