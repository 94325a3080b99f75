"""`stripefs probe PATH|URL`: one stream against parallel reads, and which limit binds."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from stripefs import config as configuration
from stripefs.cli.flags import SettingsCommand, given, settings_flags
from stripefs.cli.mounting import absolute
from stripefs.cli.show import rate, table
from stripefs.errors import ConfigError
from stripefs.settings import MIB, Settings
from stripefs.units import format_size, parse_size

if TYPE_CHECKING:
    from stripefs.cli.probing import Report

__all__ = ["command", "describe"]


@click.command("probe", cls=SettingsCommand)
@click.argument("path")
@click.option("--size", default="256MiB", show_default=True, metavar="SIZE", help="Read so much each way.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", "read", also=["log-level"])
@click.pass_context
def command(ctx: click.Context, path: str, size: str, as_json: bool, config: str) -> None:
    """Read a big file as one stream, then in parallel, and name the limit that binds.

    PATH is a file or directory inside a stripefs mount, a store's URL, or a local path; of a directory the largest
    file is taken. Data hosts that this host cannot reach are named.
    """
    limit = parse_size(size)
    if limit < MIB:
        raise ConfigError(f"--size {size} is too small to measure", hint="give 64MiB or more")
    flags = given(ctx)
    settings, inside = _place(path, flags, config)
    import trio

    from stripefs import logs
    from stripefs.cli.probing import open_at, probe
    from stripefs.store.url import open_store

    # What the reader retries is part of the answer; a person asks for its log by name.
    logs.configure("text", settings.mount.log_level if "log-level" in flags else "error")
    store, path_inside = (open_store(settings.store), inside) if inside else open_at(settings.store)
    try:
        with _bar(2 * limit) as progress:
            report = trio.run(functools.partial(probe, store, path_inside, settings, limit, progress))
    finally:
        store.close()
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
        return
    click.echo(describe(report))


def describe(report: Report) -> str:
    """A report for people."""
    one, parallel, status = report.one, report.parallel, report.status
    blocks = f" in blocks of {format_size(status.block_size)}, replication {status.replication}"
    busiest, share = parallel.busiest
    live = sum(host.live for host in report.hosts)
    rows = [
        ("source", report.source),
        ("file", f"{report.path}, {format_size(status.length)}{blocks if status.block_size else ''}"),
        *report.transport.items(),
        ("data hosts", f"{live} live" if report.hosts else ""),
        *(("out of reach", f"{address}: {error}") for address, error in report.unreachable),
        ("one stream", f"{rate(one.rate)}, {format_size(one.size)} in {one.seconds:.1f} s"),
        ("parallel", f"{rate(parallel.rate)}, {format_size(parallel.size)} in {parallel.seconds:.1f} s"),
        ("gain", f"{parallel.rate / one.rate:.1f} times one stream"),
        ("busiest host", f"{busiest} served {share:.0%}" if busiest else ""),
        ("used", ", ".join(f"{name} {value:.0%}" for name, value in report.utilisation.items())),
        ("limit", f"{report.verdict.limit}: {report.verdict.reason}"),
        ("advice", report.verdict.advice),
        *(("note", note) for note in report.notes),
    ]
    return table(rows)


def _place(path: str, flags: configuration.Given, config: str) -> tuple[Settings, bytes]:
    """Settings of a store, and the path in it; b"" for a URL or a path outside all mounts, which names it itself.

    Inside a mount its source and the way it reaches it are taken, changed by what flags say.
    """
    settings = configuration.resolve(flags, config=config)
    if "://" not in path:
        found = _inside_mount(os.path.realpath(path))
        if found is not None:
            mounted, inside = found
            mounted = mounted._replace(mount=settings.mount)
            chosen = {o.attribute: o.section for o in configuration.OPTIONS if o.name in flags}
            for section in ("store", "read"):
                ours, theirs = getattr(settings, section), getattr(mounted, section)
                changed = {name: getattr(ours, name) for name, where in chosen.items() if where == section}
                mounted = mounted._replace(**{section: theirs._replace(**changed)})
            return mounted, inside
    return settings._replace(store=settings.store._replace(url=absolute(path))), b""


def _inside_mount(path: str) -> tuple[Settings, bytes] | None:
    """How the mount that shows `path` reaches its source, and the path in there; None when no mount of ours does."""
    from stripefs.mount.control import find_mounts, query

    for mount in reversed(find_mounts()):  # a mount inside another one comes after it
        inside = os.path.relpath(path, mount.mountpoint)
        if inside != ".." and not inside.startswith("../"):
            told = query(mount.mountpoint, "status")["settings"]
            settings = Settings.from_json(json.dumps(told | {"mount": {"options": []}}))
            return settings, b"/" + (b"" if inside == "." else os.fsencode(inside))
    return None


@contextmanager
def _bar(length: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error where a person may be looking, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _size: None
        return
    with click.progressbar(length=length, label="reading", file=sys.stderr) as bar:
        yield bar.update
