"""`imagefs rm STORE#TAG`."""

from __future__ import annotations

import sys

import click

from imagefs.cli.common import flags, images_of, json_flag, print_json
from imagefs.reference import parse_reference
from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("rm", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@json_flag
@flags("store")
@click.pass_context
def command(ctx: click.Context, image: str, as_json: bool, config: str) -> None:
    """Take a tag away, and the image when it has no other tag; with STORE#DIGEST the image and all its tags.

    The bytes stay until `imagefs gc`. Hosts that have the image mounted go on as long as those are there.
    """
    from imagefs.housekeeping.listing import remove_image

    reference = parse_reference(image)
    with images_of(ctx, config, reference.store) as images:
        tags, digests = remove_image(images, reference.name)
    if as_json:
        print_json({"tags": tags, "images": digests})
        return
    sys.stdout.writelines([f"tag {tag}\n" for tag in tags] + [f"image {digest}\n" for digest in digests])
