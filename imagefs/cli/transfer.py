"""Commands that copy an image with its traces: `push` into a container registry, `pull` from one."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click

from imagefs.cli.common import flags, json_flag, opened, print_json, progress_bar, quiet_flag, settings_for
from imagefs.reference import Reference, parse_reference
from imagefs.repository.images import is_digest
from imagefs.repository.store import is_registry
from stripefs.cli.exit_errors import ended_by_sigterm
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.output import table
from stripefs.errors import ConfigError
from stripefs.settings import redact
from stripefs.units import format_size

__all__ = ["pull_command", "push_command", "run_copy"]


def run_copy(
    ctx: click.Context, config: str, source: Reference, target: Reference, *, as_json: bool, quiet: bool
) -> None:
    """Copy the image `source` to the store of `target`, where its name is the tag, "" for that of the source; print
    what moved. Raises ConfigError, and what `imagefs.build.transfer.copy_image` does."""
    from imagefs.build.transfer import copy_image

    if is_digest(target.name):
        raise ConfigError(
            f"{target.name} is a digest where a tag belongs", hint="an image has its digest wherever it lies"
        )
    here, there = (settings_for(ctx, config, one.store) for one in (source, target))
    began = time.monotonic()
    with (
        ended_by_sigterm(),
        opened(here) as images,
        opened(there, make=True) as others,
        progress_bar(quiet=quiet) as progress,
    ):
        found = copy_image(images, others, source.name, tag=target.name, progress=progress)
    took = time.monotonic() - began
    if as_json:
        print_json({"source": str(source), "store": str(target._replace(name="")), **asdict(found), "seconds": took})
    elif quiet:
        sys.stdout.write(found.digest + "\n")
    else:
        linked = f", {found.linked} linked" if found.linked else ""
        moved = f"{found.objects} objects ({format_size(found.bytes)}) sent{linked}, {found.present} there already"
        rows = [
            ("image", str(target._replace(name=found.tag or found.digest))),
            ("digest", found.digest),
            ("copied", moved),
            ("traces", f"{found.traces} traces, {found.plans} plans"),
            ("time", f"{took:.1f} s"),
        ]
        sys.stdout.write(table(rows) + "\n")


@click.command("push", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("target", metavar="oci://HOST/NAME[:TAG]")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def push_command(ctx: click.Context, image: str, target: str, as_json: bool, quiet: bool, config: str) -> None:
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


@click.command("pull", cls=SettingsCommand)
@click.argument("image", metavar="oci://HOST/NAME:TAG")
@click.argument("target", metavar="STORE[#TAG]")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def pull_command(ctx: click.Context, image: str, target: str, as_json: bool, quiet: bool, config: str) -> None:
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
