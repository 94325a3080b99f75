"""`imagefs startup report PLACE...`: the report on starts, as text for a terminal, JSON, or a page.

Characters in names that would steer the terminal become '?' in the text.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click

from imagefs.cli.common import json_flag
from imagefs.startup.report import Comparison, Growth, Lost, Report, Start, Step
from stripefs.cli.output import columns
from stripefs.errors import ConfigError
from stripefs.osutil import write_output
from stripefs.units import parse_duration

__all__ = ["report_command", "report_text"]

_ROWS = 12  # rows of a table that may be long


def report_text(report: Report, width: int, *, everything: bool = False, bold: bool = False) -> str:
    """The report in lines of at most `width` columns, tables excepted. everything: each start in full."""
    slowest = max(report.starts, key=lambda one: one.total_s)
    full = report.starts if everything else [slowest]
    parts: list[tuple[str, str]] = []
    if len(report.starts) > 1:
        parts.append((f"{len(report.starts)} STARTS", _starts(report.starts)))
    for start in full:
        parts += _start(start, width)
    if report.offenders:
        heads = ["SLOW AGAIN AND AGAIN", "STARTS", "OF", "SECONDS", "CAUSES"]
        rows = [
            [f"{one.kind} {one.name}", str(one.starts), str(one.seen), f"{one.seconds:.1f}", _counts(one.causes)]
            for one in report.offenders[:_ROWS]
        ]
        parts.append(("", columns(heads, rows)))
    if report.comparison:
        parts.append(("BEFORE AND AFTER", _comparison(report.comparison)))
    if report.growth:
        parts.append(("GROWTH WITH NODES", _growth(report.growth)))
    if report.lost:
        parts.append(("GPU TIME LOST", _wrapped(_lost(report.lost), width)))
    if report.unused:
        rows = [[one.module, f"{one.seconds:.2f}", str(one.units)] for one in report.unused[:_ROWS]]
        parts.append(("", columns(["IMPORTED, NOT USED BEFORE THE FIRST STEP", "SECONDS", "UNITS"], rows)))
    if report.advice:
        parts.append(("ADVICE", "\n".join(_advice(report, width))))
    told = f"{report.events} events of {report.lines} lines in {report.files} files"
    problems = [
        f"{one.count} {one.kind}: {one.meaning}{f' ({one.example})' if one.example else ''}" for one in report.problems
    ]
    parts.append(("EVENTS", "\n".join([told, *(_wrapped(line, width, "  ") for line in problems)])))
    return "\n\n".join(_titled(title, body, bold) for title, body in parts) + "\n"


def _titled(title: str, body: str, bold: bool) -> str:
    clean = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in body)
    title = "".join(letter if letter.isprintable() else "?" for letter in title)
    if not title:
        title, _, clean = clean.partition("\n")
    return (f"\x1b[1m{title}\x1b[0m" if bold else title) + "\n" + clean


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False)


def _starts(starts: Sequence[Start]) -> str:
    order = sorted(starts, key=lambda one: -one.total_s)
    rows = [
        [_title(one), str(one.nodes), str(one.ranks), f"{one.total_s:.1f}", _largest(one), str(len(one.stragglers))]
        for one in order[:_ROWS]
    ]
    more = f"\n… and {len(order) - _ROWS} that were faster" if len(order) > _ROWS else ""
    return columns(["START", "NODES", "RANKS", "SECONDS", "LARGEST STAGE", "STRAGGLERS"], rows) + more


def _title(start: Start) -> str:
    name = "/".join(part for part in (start.job, start.run) if part) or "(no run named)"
    return name + (f" attempt {start.attempt}" if start.attempt else "") + (f" ({start.side})" if start.side else "")


def _largest(start: Start) -> str:
    stages = [one for one in start.stages if one.stage != "setup"]
    return max(stages, key=lambda one: one.alone_s).stage if stages else ""


def _start(start: Start, width: int) -> Iterator[tuple[str, str]]:
    ends = {"ready": "ready", "first_step": "the end of the first step"}
    ended = ends.get(start.ended_by, "the last event: no ready and no first step was found")
    queued = f", {start.held_s:.1f} s without the queue" if start.held_s < start.total_s else ""
    bound = "unknown" if start.skew_bound_s is None else f"{start.skew_bound_s:.3f} s"
    skew = {
        "same boot": "one clock for all nodes",
        "barrier": f"aligned where ranks left the rendezvous; largest skew {start.skew_max_s:.3f} s, within {bound}",
        "wall": f"not aligned (no barrier), so times of different nodes compare by wall clock; skew {bound}",
    }[start.skew_method]
    lines = [
        f"{start.nodes} nodes, {start.ranks} ranks, until {ended}{queued}",
        f"units ended at p50 {start.unit_end_p50_s:.1f} s, p99 {start.unit_end_p99_s:.1f} s, last {start.last_unit}",
        f"clocks: {skew}",
    ]
    if not start.complete:
        lines.append("some units have no ready and no first step: for them the last event counts")
    yield f"{_title(start)}: {start.total_s:.1f} s", "\n".join(_wrapped(line, width) for line in lines)
    heads = ["STAGE", "MEAN s", "WORK", "WAIT", "ALONE", "P50", "P99", "MAX", "MAX/P50", "SLOWEST"]
    rows = [
        [
            one.stage,
            *(f"{value:.1f}" for value in (one.union_s, one.work_s, one.wait_s, one.alone_s)),
            *(f"{value:.1f}" for value in (one.p50_s, one.p99_s, one.max_s)),
            "-" if one.max_over_median is None else f"{one.max_over_median:.2f}",
            one.slowest,
        ]
        for one in start.stages
    ]
    overlap = start.overlap
    covered = (
        f"the mean of {start.units} units: {overlap.sum_s:.1f} s of stages in {overlap.covered_s:.1f} s "
        f"({overlap.sum_s - overlap.covered_s:.1f} s overlap), {overlap.uncovered_s:.1f} s in no stage"
    )
    yield "", columns(heads, rows) + "\n" + _wrapped(covered, width)
    if start.critical_path:
        yield "CRITICAL PATH, the end first (@ begins, + takes)", "\n".join(_chain(start, width))
    slow = []
    for one in start.stragglers[:_ROWS]:
        if one.apparent:
            seems = "late" if one.causes[0].evidence["skew_s"] > 0 else "early"
            slow.append(_wrapped(f"{one.node} only seems {seems}: {one.causes[0].text}", width))
            continue
        slow.append(f"{one.node} {one.stage} {one.seconds:.1f} s, {one.excess_s:.1f} s more than the median")
        slow += [_wrapped(f"{cause.cause}: {cause.text}", width, "  ") for cause in one.causes]
    if len(start.stragglers) > _ROWS:
        slow.append(f"… and {len(start.stragglers) - _ROWS} more")
    if slow:
        yield "STRAGGLERS", "\n".join(slow)
    if start.causes:
        yield "WAITS", "\n".join(_wrapped(f"{one.cause}: {one.text}", width) for one in start.causes)
    if start.unfinished:
        lines = [
            f"{one.node}{_rank(one.rank)} {one.stage} {one.name}".rstrip()
            + f" began @{one.begin_s:.1f} s, at least {one.at_least_s:.1f} s"
            for one in start.unfinished[:_ROWS]
        ]
        lines += [f"… and {len(start.unfinished) - _ROWS} more"] * (len(start.unfinished) > _ROWS)
        yield "UNFINISHED", "\n".join(lines)


def _rank(rank: int | None) -> str:
    return "" if rank is None else f" rank {rank}"


def _chain(start: Start, width: int) -> Iterator[str]:
    yield f"{start.ended_by} @{start.total_s:.1f} s"
    where = ""
    for depth, step in enumerate(reversed(start.critical_path)):
        indent = "  " * min(depth, 12)
        name = " ".join(part for part in (step.stage, step.name) if part) or f"({step.note})"
        place = step.node + _rank(step.rank)
        line = f"{indent}└─{name} @{step.begin_s:.1f} s +{step.seconds:.1f} s" + (
            f"  {place}" if place != where else ""
        )
        where = place
        yield line
        if details := _details(step):
            yield _wrapped(details, width, indent + "    ")


def _details(step: Step) -> str:
    parts = [step.note] if step.note and step.stage else []
    if step.wait_s >= 0.05 and step.kind != "wait":
        parts.append(f"waited {step.wait_s:.1f} s")
    largest = sorted(step.inside.items(), key=lambda one: -one[1])[:3]
    parts += [f"{stage} {seconds:.1f} s within" for stage, seconds in largest if seconds >= 0.05]
    return ", ".join(parts)


def _counts(causes: dict[str, int]) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items(), key=lambda one: -one[1]))


def _comparison(rows: Sequence[Comparison]) -> str:
    heads = ["STAGE", "BEFORE s", "AFTER s", "RATIO (95%)", "RESAMPLED"]
    cells = [
        [
            one.stage or "total",
            f"{one.before_s:.1f}",
            f"{one.after_s:.1f}",
            f"{one.ratio:.2f}" if one.ratio else "-",
            one.resampled or "-",
        ]
        for one in rows
    ]
    return columns(heads, cells)


def _growth(growth: Growth) -> str:
    rows = [[str(one.nodes), str(one.starts), f"{one.median_s:.1f}", f"{one.p90_s:.1f}"] for one in growth.groups]
    table = columns(["NODES", "STARTS", "MEDIAN s", "P90 s"], rows)
    if growth.a is None:
        return table + "\nfewer than three sizes: no law fitted"
    law = f"{growth.a:.1f} * nodes ** b" if growth.law == "power" else f"{growth.a:.1f} + b * ln(nodes)"
    return f"{table}\nseconds = {law}, b = {growth.b:.2f}"


def _lost(lost: Lost) -> str:
    parts = [f"{lost.gpu_hours:.1f} GPU-hours on {lost.gpus:g} GPUs ({lost.assumed})"]
    if lost.cost is not None:
        parts.append(f"at a cost of {lost.cost:.2f}")
    if lost.share_lost is not None and lost.effective_share is not None:
        parts.append(f"{lost.share_lost:.2%} of the GPU time, effective training time {lost.effective_share:.2%}")
    largest = sorted(lost.by_stage.items(), key=lambda one: -one[1])[:4]
    parts.append("alone: " + ", ".join(f"{stage} {hours:.1f}" for stage, hours in largest))
    return "; ".join(parts)


def _advice(report: Report, width: int) -> Iterator[str]:
    for one in report.advice:
        hours = "" if one.gpu_hours is None else f", {one.gpu_hours:.1f} GPU-hours"
        most = "at most " if one.at_most else ""
        starts = f" in {one.starts} starts" if len(report.starts) > 1 else ""
        yield _wrapped(f"{one.action}: saves {most}{one.saving_s:.1f} s ({one.saving_share:.0%}){starts}{hours}", width)
        yield _wrapped(one.basis, width, "  ")


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
@click.option(
    "--run-length", default="", metavar="TIME", help="Time for which a run trains after its start, such as 6h."
)
@click.option("--all", "everything", is_flag=True, help="Show every start in full, not the slowest alone.")
@click.option("--html", "page", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page with charts too.")
@json_flag
def report_command(
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
    from imagefs.startup.analysis import Gpus, analyse
    from imagefs.startup.sources import find_files, find_run

    wanted = [place for place in places if place not in names]
    wanted += dict.fromkeys(found for name in names for found in find_run(events, name))
    sides = [("before", find_files(before)), ("after", find_files(after))] if before else [("", find_files(wanted))]
    cost = Gpus(gpus, gpus_per_node, gpu_price, parse_duration(run_length) if run_length else 0.0)
    report = analyse(sides, [*runs, *names], cost)
    if page:
        from imagefs.startup.html import to_html

        try:
            write_output(page, [to_html(report)])
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
