"""`imagefs deps inspect SNAPSHOT`."""

from __future__ import annotations

import json
import sys
import time

import click

from imagefs.cli.common import flags, json_flag, print_json
from imagefs.cli.deps.common import loaded
from imagefs.format.inode import printable
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.output import table

__all__ = ["command"]


@click.command("inspect", cls=SettingsCommand)
@click.argument("snapshot")
@json_flag
@flags("deps", "store")
@click.pass_context
def command(ctx: click.Context, snapshot: str, as_json: bool, config: str) -> None:
    """Say what a snapshot was made of: its key, its image, and what was noticed. SNAPSHOT may be its first digits."""
    found = loaded(ctx, config, snapshot)
    if as_json:
        print_json({"name": found.name, **json.loads(found.to_json())})
        return
    rows = [
        ("snapshot", found.name),
        ("image", found.image),
        ("kind", found.kind),
        *(("target", printable(target)) for target in found.targets),
        ("made", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.made_at))),
        ("installed in", f"{found.made_seconds:.1f} s"),
        *(("noticed", printable(line)) for line in found.findings),
    ]
    sys.stdout.write(f"{table(rows)}\n\nkey\n{json.dumps(found.key, indent=2, sort_keys=True)}\n")
