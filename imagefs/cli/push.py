"""`imagefs push STORE#TAG oci://HOST/NAME[:TAG]`."""

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


@click.command("push", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("target", metavar="oci://HOST/NAME[:TAG]")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def command(ctx: click.Context, image: str, target: str, as_json: bool, quiet: bool, config: str) -> None:
    """Copy an image with its traces and plans into a repository of a container registry.

    What the repository has is not sent again, and what another repository of the same registry has is linked where the
    registry does that. Without a TAG the image keeps the one that it has. A push that is interrupted publishes nothing,
    and the next one goes on from what it stored.
    """
    place = parse_reference(target, name=None)
    if not is_registry(place.store):
        raise ConfigError(
            f"{redact(target)!r} names no repository of a registry", hint="write oci://HOST/NAME or oci://HOST/NAME:TAG"
        )
    run_copy(ctx, config, parse_reference(image), place, as_json=as_json, quiet=quiet)
