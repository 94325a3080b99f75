"""`imagefs deps verify SNAPSHOT`."""

from __future__ import annotations

import click

from imagefs.cli.common import flags, json_flag, quiet_flag
from imagefs.cli.deps.common import SHORT, snapshots_of
from imagefs.cli.progress import shown
from imagefs.cli.verify import report
from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("verify", cls=SettingsCommand)
@click.argument("snapshot")
@json_flag
@quiet_flag
@flags("deps", "store")
@click.pass_context
def command(ctx: click.Context, snapshot: str, as_json: bool, quiet: bool, config: str) -> int:
    """Read all that a snapshot is made of and check every block. SNAPSHOT may be its first digits.

    What is wrong comes line by line, and the exit code is then 5. `imagefs verify STORE` checks a whole store.
    """
    from imagefs.housekeeping.verify import verify
    from imagefs.repository.snapshots import Snapshots

    with snapshots_of(ctx, config) as images, shown(quiet=quiet) as progress:
        snapshots = Snapshots(images)
        name = snapshots.resolve(snapshot)
        result = verify(images, snapshots.checked_image(name), progress)
    hint = f"imagefs deps rm {name[:SHORT]} takes it away, and the next start installs anew"
    return report(result, [], f"snapshot {name[:SHORT]}", hint, as_json=as_json, quiet=quiet)
