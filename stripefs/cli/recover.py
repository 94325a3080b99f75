"""`stripefs recover PATH`: a file from what fsync made durable before its writer died."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from stripefs.cli.exit_errors import tell
from stripefs.cli.flags import SettingsCommand, given, settings_flags
from stripefs.cli.output import status_line
from stripefs.cli.paths import opened_file, place
from stripefs.errors import ConfigError, StoreError
from stripefs.units import format_size, shown

if TYPE_CHECKING:
    from stripefs.gc.recover import RecoveryPlan

__all__ = ["command"]


@click.command("recover", cls=SettingsCommand)
@click.argument("path")
@click.option("--to", default="", metavar="NAME", help="Name it so, in the same directory; what is there is replaced.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what could be had and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def command(ctx: click.Context, path: str, to: str, dry_run: bool, as_json: bool, config: str) -> int:
    """Make a file of what fsync made durable at PATH before its writer died.

    PATH is a file inside a stripefs mount, a URL or a local path; the newest record of an fsync is taken. Lengths and
    checksums are compared; what is not intact ends the file. It is published in one step, under its own name or --to;
    a file that stands under its own name meanwhile is not replaced unless --to names it.
    """
    name = to.encode("utf-8", "surrogateescape")
    if b"/" in name or name in (b".", b".."):
        raise ConfigError(f"--to {to!r} is not a name", hint="the file stays in its directory; move it afterwards")
    settings, inside = place(path, given(ctx), config)
    from stripefs import logs
    from stripefs.gc.recover import recover
    from stripefs.store.striped import striped_view
    from stripefs.write.upload_names import join_path, split_path

    logs.configure("text", settings.mount.log_level if "log-level" in given(ctx) else "error")
    with opened_file(settings, inside) as (store, file), status_line() as show:
        checked = 0

        def progress(size: int) -> None:
            nonlocal checked
            checked += size
            show(f"checked {format_size(checked)}")

        target = join_path(split_path(file)[0], name) if name else b""
        view = striped_view(store, settings.store, settings.write.trust_pool)
        plan = recover(store, view, file, to=target, dry_run=dry_run, progress=progress)
    if as_json:
        click.echo(json.dumps(as_dict(store.url, plan, target or file, dry_run=dry_run), indent=2))
    else:
        whole = format_size(plan.found.record.length)
        size = format_size(plan.length) if plan.complete else f"the first {format_size(plan.length)} of {whole}"
        click.echo(f"{size} {'can be recovered' if dry_run else f'recovered as {shown(target or file)}'}")
    if not plan.complete:
        tell(f"the rest of {shown(file)} is lost: {plan.lost}")
        return StoreError.exit_code
    return 0


def as_dict(source: str, plan: RecoveryPlan, target: bytes, *, dry_run: bool) -> dict[str, Any]:
    """The --json form; sizes in bytes."""
    return {
        "source": source,
        "path": shown(plan.found.file),
        "target": shown(target),
        "dry_run": dry_run,
        "layout": plan.found.record.layout,
        "bytes": plan.length,
        "durable": plan.found.record.length,
        "complete": plan.complete,
        "lost": plan.lost,
    }
