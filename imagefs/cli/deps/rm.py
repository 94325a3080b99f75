"""`imagefs deps rm SNAPSHOT…`."""

from __future__ import annotations

import sys

import click

from imagefs.cli.common import flags, json_flag, print_json
from imagefs.cli.deps.common import snapshots_of
from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("rm", cls=SettingsCommand)
@click.argument("snapshots", nargs=-1, required=True, metavar="SNAPSHOT…")
@json_flag
@flags("deps", "store")
@click.pass_context
def command(ctx: click.Context, snapshots: tuple[str, ...], as_json: bool, config: str) -> None:
    """Take snapshots away, with their images where no tag names these. SNAPSHOT may be its first digits.

    The bytes stay until `imagefs gc`. Hosts that have a snapshot mounted go on as long as those are there.
    """
    from imagefs.housekeeping.snapshots import remove_snapshot
    from imagefs.repository.snapshots import Snapshots

    with snapshots_of(ctx, config) as images:
        names = [Snapshots(images).resolve(one) for one in snapshots]
        gone = [digest for name in names for digest in remove_snapshot(images, name)]
    if as_json:
        print_json({"snapshots": names, "images": gone})
        return
    sys.stdout.writelines([f"snapshot {name}\n" for name in names] + [f"image {digest}\n" for digest in gone])
