"""The common part of `imagefs push` and `imagefs pull`: copies an image and shows what moved."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click

from imagefs.cli.common import opened, print_json, settings_for
from imagefs.cli.progress import shown
from imagefs.reference import Reference
from imagefs.repository.images import is_digest
from stripefs.cli.exit_errors import ended_by_sigterm
from stripefs.cli.output import table
from stripefs.errors import ConfigError
from stripefs.units import format_size

__all__ = ["run_copy"]


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
        shown(quiet=quiet) as progress,
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
