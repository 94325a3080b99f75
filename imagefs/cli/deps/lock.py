"""`imagefs deps lock SNAPSHOT`."""

from __future__ import annotations

import sys

import click

from imagefs.cli.common import flags, json_flag, print_json
from imagefs.cli.deps.common import loaded
from imagefs.format.inode import printable
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import NotFound

__all__ = ["command"]


@click.command("lock", cls=SettingsCommand)
@click.argument("snapshot")
@json_flag
@flags("deps", "store")
@click.pass_context
def command(ctx: click.Context, snapshot: str, as_json: bool, config: str) -> None:
    """Print what a snapshot was resolved to, as a requirements file with hashes. SNAPSHOT may be its first digits."""
    from imagefs.deps.lock import Lock

    found = loaded(ctx, config, snapshot)
    requirements = found.key.get("components", {}).get("lock") if isinstance(found.key, dict) else None
    if requirements is None:
        raise NotFound(f"the snapshot {found.name[:12]} was made without a lock", hint="see `imagefs deps inspect`")
    lock = Lock.from_document({"tool": "", "requirements": requirements})
    if as_json:
        print_json({"name": found.name, "requirements": [one._asdict() for one in lock.requirements]})
        return
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lock.to_text().splitlines()))
