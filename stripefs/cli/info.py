"""`stripefs info PATH`: how a file lies in its store, and how evenly over the data hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stripefs.cli.border import tell
from stripefs.cli.flags import SettingsCommand, given, settings_flags
from stripefs.cli.places import opened_file, place, view_of
from stripefs.cli.show import columns, table
from stripefs.errors import StoreError
from stripefs.units import format_size

if TYPE_CHECKING:
    from stripefs.cli.info_facts import Facts

__all__ = ["command", "describe"]

_MOST = 32
"""Parts shown to people; --json has all."""

_MOST_IDLE = 4
"""Hosts without any of the file that are named."""


@click.command("info", cls=SettingsCommand)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def command(ctx: click.Context, path: str, as_json: bool, config: str) -> int:
    """Show layout, parts and data hosts of a file, and how evenly its bytes lie over the hosts.

    PATH is a file inside a stripefs mount, a URL or a local path.
    """
    settings, inside = place(path, given(ctx), config)
    from stripefs import logs
    from stripefs.cli.info_facts import gather

    logs.configure("text", settings.mount.log_level if "log-level" in given(ctx) else "error")
    with opened_file(settings, inside) as (store, file):
        facts = gather(view_of(store, settings), file)
    click.echo(json.dumps(facts.as_dict(), indent=2) if as_json else describe(facts))
    for trouble in facts.trouble:
        tell(trouble)
    return StoreError.exit_code if facts.trouble else 0


def describe(facts: Facts) -> str:
    """The facts for people."""
    striped = facts.layout == "striped"
    size = f", of {format_size(facts.block_size)} at most" if facts.block_size else ""
    thin = f"; {facts.thin_blocks} of {facts.blocks} blocks have less" if facts.thin_blocks else ""
    text = table(
        [
            ("file", f"{facts.path}, {format_size(facts.length)}"),
            ("source", facts.source),
            ("layout", _layout(facts)),
            ("version", facts.version),
            ("pool", facts.pool),
            ("parts", f"{len(facts.parts)} in {facts.segments} segments" if striped else ""),
            ("blocks", f"{facts.blocks}{size}" if facts.live else ""),
            ("replication", f"{facts.replication}{thin}" if facts.live else ""),
            ("hosts", f"{len(facts.hosts)} of {facts.live} live ones{_idle(facts.idle)}" if facts.live else ""),
            ("balance", _balance(facts)),
        ]
    )
    hosts = [
        (name, format_size(size), f"{100 * size / facts.mean:.0f} %") for name, size in sorted(facts.hosts.items())
    ]
    parts = [(part.name, format_size(part.length), ", ".join(part.hosts)) for part in facts.parts[:_MOST]]
    if len(facts.parts) > _MOST:
        parts.append((f"and {len(facts.parts) - _MOST} more", "", ""))
    more = [
        "\n" + columns(("data host", "holds", "of the mean"), hosts) if hosts else "",
        "\n" + columns(("part", "length", "hosts"), parts) if parts else "",
    ]
    return "\n".join(part for part in (text, *more) if part)


def _layout(facts: Facts) -> str:
    if facts.layout != "striped":
        return "ordinary: one file that every client reads, as concat and plain make it"
    width = f" over {facts.width} parts at once" if facts.width else ""
    return f"striped: units of {format_size(facts.unit)}{width}, read through stripefs"


def _idle(hosts: Sequence[str]) -> str:
    if not hosts:
        return ""
    more = f" and {len(hosts) - _MOST_IDLE} more" if len(hosts) > _MOST_IDLE else ""
    return f"; nothing on {', '.join(hosts[:_MOST_IDLE])}{more}"


def _balance(facts: Facts) -> str:
    if not facts.balance:
        return ""
    return f"{facts.balance:.2f}, the fullest host against the mean of all live ones; 1 is even"
