"""`imagefs deps ls`."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from imagefs.cli.common import flags, json_flag, print_json
from imagefs.cli.deps.common import SHORT, snapshots_of
from imagefs.format.inode import printable
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.output import columns
from stripefs.units import format_size

__all__ = ["command"]


@click.command("ls", cls=SettingsCommand)
@json_flag
@flags("deps", "store")
@click.pass_context
def command(ctx: click.Context, as_json: bool, config: str) -> None:
    """List the dependency snapshots in the store, the one used last first.

    SIZE is that of the devices and the metadata, before compression and with padding; USED is known by a day.
    """
    from imagefs.housekeeping.snapshots import SnapshotRow, list_snapshots

    with snapshots_of(ctx, config) as images:
        rows = list_snapshots(images)

    def facts(row: SnapshotRow) -> dict[str, Any]:
        found = {"name": row.name, "stored_at": row.stored_at, "used_at": row.used_at, "error": row.error}
        if row.snapshot is None:
            return found
        one = row.snapshot
        more = {"size": row.size, "image": one.image, "kind": one.kind, "targets": list(one.targets)}
        return {**found, **more, "seconds": one.made_seconds}

    def cells(row: SnapshotRow) -> list[str]:
        stored, used = (time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (row.stored_at, row.used_at))
        if row.snapshot is None:
            return [row.name[:SHORT], stored, used[:10], "", "", printable(row.error)]
        one = row.snapshot
        return [row.name[:SHORT], stored, used[:10], format_size(row.size), one.kind, printable(" ".join(one.targets))]

    if as_json:
        print_json([facts(row) for row in rows])
    elif rows:
        head = ["SNAPSHOT", "STORED", "USED", "SIZE", "KIND", "TARGET"]
        sys.stdout.write(columns(head, [cells(row) for row in rows]) + "\n")
