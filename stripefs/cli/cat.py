"""`stripefs cat PATH…`: write files to standard output."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from stripefs.cli.flags import SettingsCommand, settings_flags
from stripefs.cli.paths import Troubles, begin, named
from stripefs.errors import StripefsError
from stripefs.settings import MIB
from stripefs.units import parse_size

if TYPE_CHECKING:
    from stripefs.api import ReadFile

__all__ = ["command"]

_STEP = 8 * MIB
"""Bytes read at once: a range of the reader, which looks ahead for what follows."""


@click.command("cat", cls=SettingsCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--offset", default="0", metavar="SIZE", help="Begin so far behind the start of each file.  [0]")
@click.option("--length", default="", metavar="SIZE", help="Write so much of each file at most.  [to its end]")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", "read", also=["log-level", "trust-pool"])
@click.pass_context
def command(ctx: click.Context, paths: tuple[str, ...], offset: str, length: str, config: str) -> int:
    """Write files to standard output, read from many data hosts at once.

    Each PATH is a file inside a stripefs mount, a URL or a local path. Of each file one version is written, or it ends
    with an error.
    """
    begin(ctx, config)
    start, most = parse_size(offset), parse_size(length) if length else None
    troubles = Troubles()
    for path in paths:
        with troubles.noted(path):
            place = named(ctx, path, config)
            with place.files.open(place.path) as file:
                _write(file, start, file.size if most is None else min(file.size, start + most))
    return troubles.code


def _write(file: ReadFile, at: int, end: int) -> None:
    """The bytes [at, end) of a file go to standard output."""
    buffer = memoryview(bytearray(min(_STEP, max(0, end - at))))
    while at < end:
        view = buffer[: file.pread_into(buffer[: end - at], at)]
        at += len(view)
        try:
            while view:
                view = view[os.write(sys.stdout.fileno(), view) :]
        except BrokenPipeError:
            raise
        except OSError as error:  # which concerns all files
            raise StripefsError(f"standard output: {error.strerror}") from error
