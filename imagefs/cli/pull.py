"""`imagefs pull oci://HOST/NAME:TAG STORE`."""

from __future__ import annotations

import click

from imagefs.cli.common import flags, json_flag, quiet_flag
from imagefs.cli.copying import run_copy
from imagefs.reference import parse_reference
from imagefs.repository.store import is_registry
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import ConfigError
from stripefs.settings import redact

__all__ = ["command"]


@click.command("pull", cls=SettingsCommand)
@click.argument("image", metavar="oci://HOST/NAME:TAG")
@click.argument("target", metavar="STORE[#TAG]")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def command(ctx: click.Context, image: str, target: str, as_json: bool, quiet: bool, config: str) -> None:
    """Copy a lazy image with its traces and plans from a container registry into STORE, which may be new.

    TAG may also be that of a container image that has a lazy image attached. What the store has is not fetched again.
    Without #TAG the image keeps its name. A pull that is interrupted publishes nothing, and the next one goes on from
    what it stored.
    """
    reference = parse_reference(image)
    if not is_registry(reference.store):
        raise ConfigError(
            f"{redact(image)!r} names no image of a registry",
            hint="write oci://HOST/NAME:TAG; `imagefs push` copies into one",
        )
    run_copy(ctx, config, reference, parse_reference(target, name=None), as_json=as_json, quiet=quiet)
