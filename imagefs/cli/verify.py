"""`imagefs verify STORE[#TAG]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from imagefs.cli.common import flags, images_of, json_flag, print_json, quiet_flag
from imagefs.cli.progress import shown
from imagefs.errors import DamagedObject
from imagefs.reference import parse_reference
from stripefs.cli.exit_errors import tell
from stripefs.cli.flags import SettingsCommand
from stripefs.units import format_size

if TYPE_CHECKING:
    from imagefs.housekeeping.verify import VerifyResult

__all__ = ["command", "report"]


@click.command("verify", cls=SettingsCommand)
@click.argument("image", metavar="STORE[#TAG]")
@click.option("--remove", is_flag=True, help="Remove damaged objects, so that the next build stores them again.")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def command(ctx: click.Context, image: str, remove: bool, as_json: bool, quiet: bool, config: str) -> int:
    """Read everything that an image is made of, or everything in a store, and check it against its digests.

    What is wrong comes line by line: where, what, and which images need it. The exit code is then 5.
    """
    from imagefs.housekeeping.verify import remove_damaged, verify

    reference = parse_reference(image, name=None)
    with images_of(ctx, config, reference.store) as images:
        digest = images.resolve(reference.name) if reference.name else ""
        with shown(quiet=quiet) as progress:
            result = verify(images, digest, progress)
        removed = remove_damaged(images, result.damage) if remove else []
    hint = "" if remove else "--remove takes damaged objects away; building their images again stores them anew"
    return report(result, removed, str(reference), hint, as_json=as_json, quiet=quiet)


def report(
    result: VerifyResult, removed: Sequence[str], subject: str, hint: str, *, as_json: bool = False, quiet: bool = False
) -> int:
    """Print what was found wrong; the exit code. hint: what to do about it, "" where that was done."""
    if as_json:
        print_json({**asdict(result), "removed": removed})
    else:
        for damage in result.damage:
            users = f" (needed by {', '.join(name[:12] for name in damage.images)})" if damage.images else ""
            gone = "; removed" if damage.path in removed else ""
            sys.stdout.write(f"{damage.path}: {damage.what}{users}{gone}\n")
        if not quiet:
            sys.stdout.write(
                f"{result.images} images, {result.objects} objects, {result.blocks} blocks, "
                f"{format_size(result.bytes)} of packs: "
                + (f"{len(result.damage)} things are wrong\n" if result.damage else "all is well\n")
            )
    if not result.damage:
        return 0
    sys.stdout.flush()
    if hint:
        tell(f"{subject} is damaged", hint, program="imagefs")
    return DamagedObject.exit_code
