"""`imagefs ls STORE`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click

from imagefs.cli.common import flags, images_of, json_flag, print_json
from imagefs.reference import parse_store
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.output import columns
from stripefs.units import format_size

__all__ = ["command"]

_SHORT = 12  # digits of a digest, which are enough to name an image


@click.command("ls", cls=SettingsCommand)
@click.argument("store")
@json_flag
@flags("store")
@click.pass_context
def command(ctx: click.Context, store: str, as_json: bool, config: str) -> None:
    """List the images in STORE: those with a tag by name, then the others, the newest first.

    SIZE is that of the devices and the metadata, before compression and with padding.
    """
    from imagefs.housekeeping.listing import ImageRow, list_images

    with images_of(ctx, config, parse_store(store)) as images:
        rows = list_images(images)
    if as_json:
        print_json([asdict(row) for row in rows])
        return

    def cells(tag: str, row: ImageRow) -> list[str]:
        stored = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.stored_at))
        if row.error:
            return [tag, row.digest[:_SHORT], stored, "", "", row.error]
        return [tag, row.digest[:_SHORT], stored, format_size(row.size), row.platform, _origin(row.source, row.base)]

    if rows:
        table = columns(
            ["TAG", "IMAGE", "STORED", "SIZE", "PLATFORM", "FROM"],
            [cells(tag, row) for row in rows for tag in row.tags or ("-",)],
        )
        sys.stdout.write(table + "\n")


def _origin(source: str, base: str) -> str:
    """What an image was made from, short."""
    if base:
        return f"{base[:_SHORT]} (optimized)"
    return source[: len("sha256:") + _SHORT] or "a directory"
