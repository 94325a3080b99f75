"""`stripefs gc SOURCE` and `stripefs recover PATH`: what writers that died have left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from stripefs.cli.commands import SettingsCommand, config_flag, given, json_flag, settings_flags
from stripefs.cli.output import status_line, tell
from stripefs.cli.paths import configure_logs, opened_file, opened_source, place
from stripefs.errors import ConfigError, StoreError
from stripefs.units import format_size, shown

if TYPE_CHECKING:
    from stripefs.gc.collect import Collected
    from stripefs.gc.recover import RecoveryPlan

__all__ = ["gc_command", "recover_command"]


_WHY = {
    "young": "too young",
    "leased": "being written",
    "recoverable": "kept for stripefs recover",
    "unknown": "kept, as not all manifests could be read",
}


@click.command("gc", cls=SettingsCommand)
@click.argument("source")
@click.option("-n", "--dry-run", is_flag=True, help="List the objects to be removed, and remove nothing.")
@click.option("--force", is_flag=True, help="Remove also data younger than a day, and data that could be recovered.")
@json_flag()
@config_flag
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def gc_command(ctx: click.Context, source: str, dry_run: bool, force: bool, as_json: bool, config: str) -> int:
    """Remove leftovers of writers that died from SOURCE, a URL or a mountpoint.

    Parts that a file needs, files of living writers, and objects that changed within a day by the store's clock
    stay; data that `stripefs recover` could restore stay for a week. Writers and readers may go on meanwhile, also
    with --force.
    """
    settings, inside = place(source, given(ctx), config)
    from stripefs.gc.collect import Collection

    configure_logs(ctx, settings)
    with opened_source(settings, inside) as opened, status_line() as show:
        collection = Collection(
            opened.base, opened.view, force=force, dry_run=dry_run, progress=lambda path: show(shown(path))
        )
        found = collection.run()
    if as_json:
        click.echo(json.dumps(_collected_dict(opened.base.url, found, dry_run=dry_run, force=force), indent=2))
    else:
        click.echo(_describe_collected(found, dry_run=dry_run))
    for path, error in found.trouble:
        tell(f"{shown(path)}: {error.removeprefix(shown(path) + ': ')}")
    return StoreError.exit_code if found.trouble else 0


def _describe_collected(found: Collected, *, dry_run: bool) -> str:
    """The result, for people; a dry run names everything that would go."""
    lines = [f"{shown(item.path)}  {item.kind.value}, {format_size(item.length)}" for item in found.items]
    if len(found.items) < found.removed:
        lines.append(f"and {found.removed - len(found.items)} more")
    lines = lines if dry_run else []
    kept = "".join(
        f"; {count} ({format_size(size)}) {_WHY[verdict.value]}"
        for verdict, (count, size) in sorted(found.kept.items(), key=lambda each: each[0].value)
    )
    lines.append(f"{found.removed} ({format_size(found.size)}) {'would go' if dry_run else 'removed'}{kept}")
    lines += [f"stripefs recover could bring back {shown(path)}" for path in found.recoverable]
    return "\n".join(lines)


def _collected_dict(source: str, found: Collected, *, dry_run: bool, force: bool) -> dict[str, Any]:
    """The --json form; sizes in bytes."""
    return {
        "source": source,
        "dry_run": dry_run,
        "force": force,
        "removed": found.removed,
        "bytes": found.size,
        "items": [{"path": shown(i.path), "kind": i.kind.value, "bytes": i.length} for i in found.items],
        "kept": {verdict.value: {"count": count, "bytes": size} for verdict, (count, size) in found.kept.items()},
        "recoverable": list(map(shown, found.recoverable)),
        "trouble": [{"path": shown(path), "error": error} for path, error in found.trouble],
    }


@click.command("recover", cls=SettingsCommand)
@click.argument("path")
@click.option("--to", default="", metavar="NAME", help="Name of the file in that directory; a file there is replaced.")
@click.option("-n", "--dry-run", is_flag=True, help="Show the restorable bytes and change nothing.")
@json_flag()
@config_flag
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def recover_command(ctx: click.Context, path: str, to: str, dry_run: bool, as_json: bool, config: str) -> int:
    """Make a file of the bytes that fsync made durable at PATH before its writer died.

    PATH is a file inside a stripefs mount, a URL or a local path; the newest record of an fsync is taken. Lengths and
    checksums are compared; the file ends at the first damaged part. It is published in one step, under its own name or
    --to; a file that stands under its own name meanwhile is not replaced unless --to names it.
    """
    name = to.encode("utf-8", "surrogateescape")
    if b"/" in name or name in (b".", b".."):
        raise ConfigError(f"--to {to!r} is not a name", hint="the file stays in its directory; move it afterwards")
    settings, inside = place(path, given(ctx), config)
    from stripefs.gc.recover import recover
    from stripefs.write.upload_names import join_path, split_path

    configure_logs(ctx, settings)
    with opened_file(settings, inside) as (source, file), status_line() as show:
        checked = 0

        def progress(size: int) -> None:
            nonlocal checked
            checked += size
            show(f"checked {format_size(checked)}")

        target = join_path(split_path(file)[0], name) if name else b""
        plan = recover(source.base, source.view, file, to=target, dry_run=dry_run, progress=progress)
    if as_json:
        click.echo(json.dumps(_plan_dict(source.base.url, plan, target or file, dry_run=dry_run), indent=2))
    else:
        whole = format_size(plan.found.record.length)
        size = format_size(plan.length) if plan.complete else f"the first {format_size(plan.length)} of {whole}"
        click.echo(f"{size} {'can be recovered' if dry_run else f'recovered as {shown(target or file)}'}")
    if not plan.complete:
        tell(f"the rest of {shown(file)} is lost: {plan.lost}")
        return StoreError.exit_code
    return 0


def _plan_dict(source: str, plan: RecoveryPlan, target: bytes, *, dry_run: bool) -> dict[str, Any]:
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
