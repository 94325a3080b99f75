"""`imagefs gc STORE`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from imagefs.cli.common import flags, images_of, json_flag, print_json, quiet_flag
from imagefs.cli.progress import shown
from imagefs.reference import parse_store
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import ConfigError
from stripefs.units import format_size, parse_duration

__all__ = ["command"]


@click.command("gc", cls=SettingsCommand)
@click.argument("store")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go and remove nothing.")
@click.option("--older-than", default="1d", metavar="TIME", help="Spare what is younger.  [1d]")
@click.option("--force", is_flag=True, help="Take a time below a day, or none; wrong while an image is being built.")
@click.option("--untagged", is_flag=True, help="Remove images that no tag names as well.")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def command(
    ctx: click.Context,
    store: str,
    dry_run: bool,
    older_than: str,
    force: bool,
    untagged: bool,
    as_json: bool,
    quiet: bool,
    config: str,
) -> None:
    """Remove what no image in STORE needs and is older than a day.

    Builds may go on meanwhile, as long as none takes more than half a day: what they are about to name is younger. With
    --force nothing is too young, unless --older-than says so; let no build run then.

    Of a registry, images go that were attached to a container image which is gone or has a newer one; the registry has
    to allow that, and frees their bytes by its own garbage collection.
    """
    from imagefs.housekeeping.gc import collect
    from imagefs.repository.images import GRACE

    given = ctx.get_parameter_source("older_than") is not click.core.ParameterSource.DEFAULT
    try:
        age = parse_duration(older_than) if given or not force else 0.0
    except ConfigError as error:
        raise ConfigError(f"--older-than: {error.message}") from error
    if age < GRACE and not force:
        raise ConfigError(
            f"--older-than {older_than} is less than a day, which a build may take",
            hint="give --force when nothing is being built",
        )
    with images_of(ctx, config, parse_store(store)) as images, shown(quiet=quiet) as progress:
        found = collect(images, older_than=age, untagged=untagged, dry_run=dry_run, progress=progress)
    if as_json:
        print_json(asdict(found))
        return
    if dry_run:
        sys.stdout.writelines(f"{path}\n" for path in found.removed)
    if not quiet:
        what = "would go" if dry_run else "removed"
        young = f"; {found.young} ({format_size(found.young_bytes)}) are too young" if found.young else ""
        sys.stdout.write(f"{len(found.removed)} objects ({format_size(found.bytes)}) {what}{young}\n")
