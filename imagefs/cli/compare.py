"""`imagefs compare JOB.toml`: what each technique is worth for this job, on this machine."""

from __future__ import annotations

import os

import click

from imagefs.cli.common import json_flag, print_json
from imagefs.cli.job import FLAGS, read_job
from imagefs.cli.plain import DEPS
from imagefs.config import resolve
from imagefs.errors import RunError
from imagefs.reference import parse_reference
from stripefs.cli.exit_errors import tell
from stripefs.cli.output import columns
from stripefs.startup_events import STAGES

__all__ = ["command"]


@click.command("compare")
@click.argument("job", metavar="JOB.toml")
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Starts in each way.")
@json_flag
def command(job: str, rounds: int, as_json: bool) -> None:
    """Start a job cold without and with each technique, and print the time of each stage: median, least and most.

    Each start has caches and a daemon of its own in a temporary folder. The kernel's page cache is dropped before, the
    one of the whole machine. Needs root, and the disk that the image and the checkpoint take.
    """
    from imagefs.jobs.compare import compare, drop_page_cache, variants

    if os.geteuid() != 0:
        raise RunError("a comparison needs root: whole images are copied with the owners of their files", hint="sudo")
    file = read_job(job)
    with file.told(()):
        ways = variants(file, FLAGS, DEPS)
        store = resolve(
            file.given, url=parse_reference(file.words[0]).store, config=file.values.get("config", "")
        ).store
    cold = drop_page_cache()
    if not cold:
        tell("the page cache is not dropped, which takes a host's root: starts are not quite cold", program="imagefs")
    figures = compare(file, ways, rounds, store, lambda line: tell(line, program="imagefs"))
    if as_json:
        print_json({"rounds": rounds, "page_cache_dropped": cold, "ways": [one.as_dict() for one in figures]})
        return
    stages = [stage for stage in STAGES if any(any(one.of(stage)) for one in figures)]
    base = figures[0].as_dict()["median"]
    rows = []
    for one in figures:
        found = one.as_dict()
        cells = [_cell(found), f"{found['median'] / base:.2f}" if base else ""]
        rows.append([found["name"], *cells, *(_cell(found["stages"].get(stage)) for stage in stages)])
    click.echo(columns(["techniques", "seconds", "of none", *stages], rows))


def _cell(found: dict[str, float] | None) -> str:
    return f"{found['median']:.2f} ({found['least']:.2f}-{found['most']:.2f})" if found else "-"
