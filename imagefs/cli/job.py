"""`imagefs run` with surroundings: a job file, checkpoints, events."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from imagefs.cli.plain import Extra, start_run
from imagefs.config import resolve
from imagefs.jobs.checkpoint import Checkpoint, Warmth, parse_share, shown
from stripefs.options import Given
from stripefs.units import parse_rate

__all__ = ["begin_job"]


def begin_job(words: Sequence[str], values: Mapping[str, Any], given: Given) -> int:
    """As `imagefs.cli.plain.begin_run`."""
    with contextlib.ExitStack() as held:
        extra = Extra()
        if values["checkpoints"]:
            found = held.enter_context(
                shown(
                    [Checkpoint.parse(text) for text in values["checkpoints"]],
                    Warmth(
                        values["checkpoint_warm"],
                        parse_share(values["checkpoint_share"]),
                        int(parse_rate(values["link_rate"])) if values["link_rate"] else 0,
                    ),
                    resolve(given, config=values["config"]).daemon,
                    {},
                    values["checkpoint_options"],
                )
            )
            extra = extra._replace(binds=found.binds, prepared=found.wait)
        return start_run(words, values, given, extra)
