"""`imagefs startup export --format FORMAT PATH… -o OUT`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

import click

from imagefs.errors import FormatError
from stripefs.errors import ConfigError
from stripefs.osutil import write_output

__all__ = ["command"]

_CHARTS = ("timeline", "breakdown", "spread", "critical-path", "growth", "comparison")


@click.command("export")
@click.argument("paths", metavar="FILE|DIR|URL...", nargs=-1, required=True)
@click.option("--format", "form", required=True, type=click.Choice(("perfetto", "otlp", "svg", "html")),
              help="perfetto, otlp (JSON lines), svg (one chart) or html (a page).")  # fmt: skip
@click.option("-o", "--out", required=True, metavar="OUT", help="The file to write; - is standard output.")
@click.option("--before", multiple=True, metavar="FILE|DIR|URL", help="Starts to compare with, for html and svg.")
@click.option("--run", default="", help="Only this run; svg shows the slowest start of several.")
@click.option("--chart", default="timeline", type=click.Choice(_CHARTS), help="The chart of svg.  [timeline]")
def command(paths: tuple[str, ...], form: str, out: str, before: tuple[str, ...], run: str, chart: str) -> None:
    """Write starts for Perfetto, OpenTelemetry, as a chart, or as a page that needs nothing else."""
    if form in ("perfetto", "otlp"):
        _write(out, _events(paths, form, run))
    else:
        sides = [("before", before), ("after", paths)] if before else [("", paths)]
        _write(out, [_picture(sides, form, run, chart)])


def _events(places: tuple[str, ...], form: str, run: str) -> Iterable[str]:
    from imagefs.startup.event_files import read_events

    files = read_events(places)
    notes = [f"{files.bad_lines} lines are no events and left out"] if files.bad_lines else []
    sys.stderr.writelines(f"{note}\n" for note in [*notes, *files.damaged])
    events = [event for event in files.events if not run or event.get("run") == run]
    if not events:
        raise FormatError(f"no events{f' of the run {run}' if run else ''} in {' '.join(places)}")
    if form == "otlp":
        from imagefs.startup.otlp import to_otlp

        return to_otlp(events)
    from imagefs.startup.perfetto import to_perfetto

    return [to_perfetto(events) + "\n"]


def _picture(sides: list[tuple[str, tuple[str, ...]]], form: str, run: str, chart: str) -> str:
    """The page of all starts, or a chart of all, or of the slowest."""
    from imagefs.startup.analysis import analyse
    from imagefs.startup.sources import find_files

    report = analyse([(side, find_files(places)) for side, places in sides], [run] if run else [])
    if form == "html":
        from imagefs.startup.html import to_html

        return to_html(report)
    from imagefs.startup import svg

    if chart == "growth":
        if report.growth is None:
            raise FormatError("all starts have the same number of nodes", hint="growth needs starts of several sizes")
        return svg.standalone(svg.growth(report.growth))
    if chart == "comparison":
        if not report.comparison:
            raise ConfigError("there is nothing to compare with", hint="give --before")
        return svg.standalone(svg.comparison(report.comparison))
    start = max(report.starts, key=lambda one: one.total_s)
    draw = {
        "timeline": svg.timeline,
        "breakdown": svg.breakdown,
        "spread": svg.spread,
        "critical-path": svg.critical_path,
    }
    return svg.standalone(draw[chart](start))


def _write(out: str, parts: Iterable[str]) -> None:
    if out == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as pages and pictures say, whatever the locale
        sys.stdout.writelines(parts)
        return
    try:
        write_output(out, parts)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}", hint="check -o") from error
