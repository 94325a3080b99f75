"""`imagefs run STORE#TAG -- COMMAND`, where `imagefs.cli.plain` leaves the reading to click."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from imagefs.cli.options import plain_flags
from imagefs.cli.plain import DEPS, JOB, RUN, SECTIONS, WITHOUT, begin_run
from imagefs.config import IMAGEFS
from stripefs.cli.flags import SettingsCommand, given, settings_flags

__all__ = ["command"]


@click.command("run", cls=SettingsCommand)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="STORE#TAG|FILE.toml [-- COMMAND…]")
@plain_flags((*RUN, *DEPS, *JOB))
@settings_flags(*SECTIONS, without=[WITHOUT], options=IMAGEFS)
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **values: Any) -> int:
    """Run a container from an image, by runc or crun, and end with the status of its command.

    COMMAND takes the place of the image's own. A job that says when it has started
    creates the file $IMAGEFS_READY; else the start is over when the command ends, or after --record-seconds.
    With --deps, pip of the image installs what a requirements file names before, once; later starts, here and on
    other hosts, have it above the image. With --checkpoint, files of a store are fetched while the image starts.
    A job file holds the same flags, the image and the command (docs/jobs.md).
    """
    said = frozenset(name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    return begin_run(words, values, given(ctx), said)
