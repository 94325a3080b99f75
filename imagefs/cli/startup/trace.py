"""`imagefs startup trace -- COMMAND`, where `plain_startup` leaves the reading to click."""

from __future__ import annotations

from typing import Any

import click

from imagefs.cli.options import plain_flags
from imagefs.cli.startup import TRACE, run_trace

__all__ = ["command"]


@click.command("trace", context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@plain_flags(TRACE)
def command(words: tuple[str, ...], **values: Any) -> int:
    """Run COMMAND and write its stages as events, without any help of it; end with its status, 128+N for a signal.

    Seen are programs that are executed and end, installers, imports of Python, files of checkpoints that are read, and
    the first use of an accelerator, of COMMAND and of all that it starts. The command runs in the environment of
    this one, with TRACEPARENT, BOOTSEER_EVENTS, BOOTSEER_RUN and _JOB and, unless --no-imports is given, a folder more
    on PYTHONPATH.
    """
    return run_trace(values, words)
