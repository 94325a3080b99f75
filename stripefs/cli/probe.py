"""`stripefs probe PATH|URL`: one stream against parallel reads, and which limit binds."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from stripefs.cli.commands import SettingsCommand, config_flag, given, json_flag, settings_flags
from stripefs.cli.output import rate, table
from stripefs.cli.paths import configure_logs, place
from stripefs.errors import ConfigError
from stripefs.settings import MIB
from stripefs.units import format_size, parse_size

if TYPE_CHECKING:
    from stripefs.cli.probe_measure import Report

__all__ = ["command", "describe"]


@click.command("probe", cls=SettingsCommand)
@click.argument("path")
@click.option("--size", default="256MiB", show_default=True, metavar="SIZE", help="Bytes to read in each way.")
@json_flag()
@config_flag
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
    settings, inside = place(path, flags, config)
    import trio

    from stripefs.assembly import open_at
    from stripefs.cli.probe_measure import probe

    # The reader's retries are part of the answer; a user asks for their log by name.
    configure_logs(ctx, settings)
    store, path_inside = open_at(settings.store, inside)
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


@contextmanager
def _bar(length: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error where a person may be looking, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _size: None
        return
    with click.progressbar(length=length, label="reading", file=sys.stderr) as bar:
        yield bar.update
