"""`stripefs mount SOURCE MOUNTPOINT`."""

from __future__ import annotations

import click

from stripefs.cli import mounting
from stripefs.cli.flags import SettingsCommand, given, settings_flags
from stripefs.cli.mounting import expand

__all__ = ["command"]


@click.command("mount", cls=SettingsCommand)
@click.argument("source")
@click.argument("mountpoint", type=click.Path())
@click.option("-f", "--foreground", is_flag=True, help="Stay until the mount ends, and log to standard error.")
@click.option("-o", "words", multiple=True, metavar="A,B=C", help="The same options, the way mount(8) writes them.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", "read", "write", "cache", "mount")
@click.pass_context
def command(
    ctx: click.Context, source: str, mountpoint: str, foreground: bool, words: tuple[str, ...], config: str
) -> int:
    """Show the files of SOURCE (hdfs://…, s3://…, file://… or a directory) below the empty directory MOUNTPOINT.

    Comes back when the mount answers and leaves it to a process in the background; `stripefs umount` ends it.
    """
    options = expand(words)
    if options.read_write is not None:
        options.given["rw"] = ("true", "-o rw") if options.read_write else ("false", "-o ro")
    options.config = config or options.config
    settings = mounting.prepare(source, mountpoint, options, given(ctx))
    return mounting.start(settings, foreground=foreground)
