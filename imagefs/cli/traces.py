"""What the commands that take traces share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imagefs.cli.common import opened
from imagefs.config import Settings
from imagefs.format.trace import Trace
from imagefs.trace.references import complete, load_file, parse_traces, stored_traces
from stripefs.errors import ConfigError
from stripefs.units import format_size

if TYPE_CHECKING:
    from imagefs.build.optimize import OptimizeReport

__all__ = ["gather", "words"]


def gather(texts: Sequence[str], settings: Settings) -> list[Trace]:
    """The traces that the arguments of a command name, those that can be merged.

    Raises what naming or reading one raises, and ConfigError where none of them can be merged.
    """
    found: list[Trace] = []
    for text in texts:
        reference = parse_traces(text)
        if isinstance(reference, Path):
            found.append(load_file(reference))
            continue
        store = settings.store._replace(url=reference.image.store)
        with opened(settings._replace(store=store)) as images:
            found += stored_traces(images, reference.image.name, reference.workload, reference.name)
    useful = complete(found)
    if texts and not useful:
        raise ConfigError(
            f"none of {len(found)} traces is complete", hint="`imagefs trace show` says what is wrong with them"
        )
    return useful


def words(report: OptimizeReport) -> str:
    """What a hot device is made of."""
    left_out = f", {report.left_out} left out" if report.left_out else ""
    return (
        f"{format_size(report.hot_bytes)} in {report.extents} extents ({format_size(report.stored_bytes)} stored), "
        f"from {report.traces} traces{left_out}"
    )
