"""`stripefs rm PATH…`: remove files and directories."""

from __future__ import annotations

import errno
import os

import click

from stripefs.cli.flags import SettingsCommand, settings_flags
from stripefs.cli.paths import Troubles, begin, ensure_writable, named, written_name
from stripefs.errors import ConfigError
from stripefs.settings import redact

__all__ = ["command"]


@click.command("rm", cls=SettingsCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-r", "-R", "--recursive", is_flag=True, help="Remove directories, with all that is below them.")
@click.option("-f", "--force", is_flag=True, help="Say nothing of what is not there.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", also=["grace", "log-level", "trust-pool"])
@click.pass_context
def command(ctx: click.Context, paths: tuple[str, ...], recursive: bool, force: bool, config: str) -> int:
    """Remove files, and directories with -r. What somebody writes is left alone.

    Each PATH is inside a stripefs mount, a URL or a local path; links of this host are removed, not followed. Parts of
    striped files stay for those who read them, until a gc a day later; with --grace 0s they go at once.
    """
    begin(ctx, config)
    troubles = Troubles()
    for path in paths:
        ensure_writable(path)
        with troubles.noted(path):
            place = named(ctx, path, config, follow=False)
            if not written_name(path) or place.path == b"/":
                raise ConfigError(f"{redact(path)} is no name that could be removed", hint="name what is below it")
            entry = place.stat()
            if entry is None:
                if not force:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            elif entry.type != "directory":
                place.files.remove(place.path)
            elif recursive:
                place.files.rmtree(place.path)
            else:
                raise IsADirectoryError(errno.EISDIR, "it is a directory, which -r removes")
    return troubles.code
