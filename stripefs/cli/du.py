"""`stripefs du PATH…`: the space that files take."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import click

from stripefs.cli.flags import SettingsCommand, settings_flags
from stripefs.cli.output import columns
from stripefs.cli.paths import Troubles, begin, named
from stripefs.units import format_size

if TYPE_CHECKING:
    from stripefs.api.place import Place
    from stripefs.api.usage import Usage

__all__ = ["command"]


@click.command("du", cls=SettingsCommand, context_settings={"help_option_names": ["--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-h", "--human", is_flag=True, help="Sizes in KiB, MiB, …")
@click.option("-s", "--summary", is_flag=True, help="One line for each PATH, none for directories below.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def command(ctx: click.Context, paths: tuple[str, ...], human: bool, summary: bool, as_json: bool, config: str) -> int:
    """Show what directories hold, with all below them, and what the store keeps for that.

    Each PATH is a file or directory inside a stripefs mount, a URL or a local path. `size` is what programs read in the
    files; `stored` counts all replicas, and of striped files the parts with their checksums. Sizes are in bytes.
    """
    begin(ctx, config)
    troubles = Troubles()
    found: list[tuple[str, Usage]] = []
    for path in paths:
        with troubles.noted(path):
            place = named(ctx, path, config)
            usages = place.files.usage(place.path, lambda error: troubles.add(str(error.filename), error))
            found += [(_name(place, usage), usage) for usage in (usages[-1:] if summary else usages)]
    if as_json:
        document = {"paths": [_as_dict(name, usage) for name, usage in found], "trouble": troubles.found}
        click.echo(json.dumps(document, indent=2))
    elif found:
        rows = [(name, str(usage.files), *_sizes(usage, human)) for name, usage in found]
        click.echo(columns(("path", "files", "size", "stored"), rows))
    return troubles.code


def _name(place: Place, usage: Usage) -> str:
    return str(dataclasses.replace(place, path=os.fsencode(usage.path)))


def _sizes(usage: Usage, human: bool) -> tuple[str, str]:
    return (format_size(usage.size), format_size(usage.stored)) if human else (str(usage.size), str(usage.stored))


def _as_dict(name: str, usage: Usage) -> dict[str, Any]:
    return {"path": name, "files": usage.files, "bytes": usage.size, "stored_bytes": usage.stored}
