"""`imagefs startup report PLACE...`."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys

import click

from imagefs.cli.common import json_flag
from stripefs.errors import ConfigError
from stripefs.units import parse_duration

__all__ = ["command"]


_AMOUNT = click.FloatRange(min=0, max=1e12)


@click.command("report")
@click.argument("places", nargs=-1, metavar="[RUN|DIR|FILE|URL]...")
@click.option(
    "--events",
    envvar="BOOTSEER_COLLECTOR",
    default="",
    metavar="DIR|URL",
    help="The collector folder, where a RUN is looked for.  [$BOOTSEER_COLLECTOR]",
)
@click.option("--run", "runs", multiple=True, metavar="RUN", help="Only starts of this run; may be given repeatedly.")
@click.option("--before", multiple=True, metavar="DIR|FILE|URL", help="Starts to compare those of --after with.")
@click.option("--after", multiple=True, metavar="DIR|FILE|URL", help="Starts to compare with those of --before.")
@click.option("--gpus", type=_AMOUNT, default=0.0, help="GPUs of a start.  [one per rank]")
@click.option("--gpus-per-node", type=_AMOUNT, default=0.0, help="GPUs of each node of a start.")
@click.option("--gpu-price", type=_AMOUNT, default=0.0, help="Price of a GPU-hour.")
@click.option("--run-length", default="", metavar="TIME", help="How long a run trains after its start, such as 6h.")
@click.option("--all", "everything", is_flag=True, help="Show every start in full, not the slowest alone.")
@click.option("--html", "page", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page with charts too.")
@json_flag
def command(
    places: tuple[str, ...],
    events: str,
    runs: tuple[str, ...],
    before: tuple[str, ...],
    after: tuple[str, ...],
    gpus: float,
    gpus_per_node: float,
    gpu_price: float,
    run_length: str,
    everything: bool,
    page: str | None,
    as_json: bool,
) -> None:
    """Show where starts of jobs lost time, on which node, the likely cause, and the changes that would help.

    Events are files of JSON lines (.jsonl, also .gz and .zst), directories of them, or URLs of either. A RUN is a name
    or JOB/RUN that is no path: its starts are looked for in --events. docs/startup-report.md explains the figures.
    """
    if bool(before) != bool(after):
        raise ConfigError("--before and --after are given together")
    if bool(places) == bool(before):
        raise ConfigError("name either places or --before and --after", hint="imagefs startup report DIR")
    if any(map(math.isnan, (gpus, gpus_per_node, gpu_price))):
        raise ConfigError("nan is no number of GPUs and no price")
    if gpus and gpus_per_node:
        raise ConfigError("--gpus and --gpus-per-node exclude each other")
    names = [place for place in places if "://" not in place and not os.path.lexists(place)]
    if names and (not events or any(name.startswith((".", "/")) for name in names)):
        raise ConfigError(f"{names[0]} does not exist", hint="for a run's name --events says where its events are")
    from imagefs.cli.startup.report_text import report_text
    from imagefs.startup.analysis import Gpus, analyse
    from imagefs.startup.sources import find_files, find_run

    wanted = [place for place in places if place not in names]
    wanted += dict.fromkeys(found for name in names for found in find_run(events, name))
    sides = [("before", find_files(before)), ("after", find_files(after))] if before else [("", find_files(wanted))]
    cost = Gpus(gpus, gpus_per_node, gpu_price, parse_duration(run_length) if run_length else 0.0)
    report = analyse(sides, [*runs, *names], cost)
    if page:
        from imagefs.startup.html import write_html

        try:
            write_html(report, page)
        except OSError as error:
            raise ConfigError(f"{page} cannot be written: {error.strerror}") from error
    if as_json:
        sys.stdout.write(json.dumps(report.to_json()) + "\n")  # in one line, which takes a tenth of the time
        return
    if isinstance(sys.stdout, io.TextIOWrapper):  # of a locale that lacks the lines of the path, or letters of names
        sys.stdout.reconfigure(errors="replace")
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = min(100, max(60, shutil.get_terminal_size((80, 24)).columns)) if sys.stdout.isatty() else 100
    sys.stdout.write(report_text(report, width, everything=everything, bold=bold))
