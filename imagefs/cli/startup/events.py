"""Commands that make start-up events and hand them on: `mark`, `trace`, `import`, `export`.

`mark` and `trace` are here for their pages and for lines that `plain_startup` leaves to click.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterable
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from imagefs.cli.common import plain_flags
from imagefs.cli.startup import TRACE, run_trace
from imagefs.errors import FormatError
from stripefs import startup_events
from stripefs.errors import ConfigError
from stripefs.osutil import write_output
from stripefs.startup_events import STAGES

if TYPE_CHECKING:
    from imagefs.startup.importers import Imported

__all__ = ["export_command", "import_command", "mark_command", "trace_command"]


@click.command("mark")
@click.argument("stage")
@click.argument("event", type=click.Choice(["begin", "end", "instant"]), default="instant")
@click.option("--name", default="", help="The part of the stage, such as a file or a package.")
@click.option("--fact", "facts", multiple=True, metavar="KEY=VALUE", help="A number, true, false or text.")
@click.option("--events", default=None, metavar="DIR", help="The spool folder.  [$BOOTSEER_EVENTS]")
def mark_command(stage: str, event: str, name: str, facts: tuple[str, ...], events: str | None) -> int:
    """Write that a stage of this start begins or ends, or that something happened.

    Begin and end may come from two processes: of one start, node, rank, stage and name they make one span. An event
    that cannot be written is reported on standard error; the exit status is 0 all the same.
    """
    line = ["mark", stage, event, f"--name={name}", *(f"--fact={fact}" for fact in facts)]
    return startup_events.main([*line, *([] if events is None else [f"--events={events}"])], "imagefs startup")


@click.command("trace", context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@plain_flags(TRACE)
def trace_command(words: tuple[str, ...], **values: Any) -> int:
    """Run COMMAND and write its stages as events, without any help of it; end with its status, 128+N for a signal.

    Seen are programs that are executed and end, installers, imports of Python, files of checkpoints that are read, and
    the first use of an accelerator, of COMMAND and of all that it starts. The command runs in the environment of
    this one, with TRACEPARENT, BOOTSEER_EVENTS, BOOTSEER_RUN and _JOB and, unless --no-imports is given, a folder more
    on PYTHONPATH.
    """
    return run_trace(values, words)


_KINDS = ("containerd", "csv", "kubernetes", "otlp", "slurm", "systemd")
_SHOWN = 10


@click.command("import")
@click.argument("kind", metavar="KIND", type=click.Choice(_KINDS))
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--out", default="", metavar="DIR", help="Write a file of events there.  [standard output]")
@click.option("--job", default="", help="The job of all events, in place of the one in the data.")
@click.option("--run", default="", help="The run of all events, in place of the one in the data.")
@click.option("--node", default="", help="The node of all events, in place of the one in the data.")
@click.option(
    "--zone", default="", metavar="NAME", help="Zone of times that name none: UTC, Europe/Berlin.  [this host's]"
)
@click.option(
    "--origin", default="", metavar="TIME", help="Time at which the kernel started, for systemd: 2026-01-31T12:00:00Z."
)
@click.option(
    "--stage", "stages", multiple=True, metavar="NAME=STAGE", help="The stage of spans so named; NAME may have *."
)
@click.option(
    "--map", "columns", multiple=True, metavar="COLUMN=FIELD", help="The field that a column of a CSV file holds."
)
@click.option(
    "--set", "constants", multiple=True, metavar="FIELD=VALUE", help="A field that is the same in all rows of CSV."
)
@click.option(
    "--time-format", default="", metavar="FORMAT", help="iso, unix, unix_ms, unix_us, unix_ns, or as strptime.  [iso]"
)
@click.option("--delimiter", default="", metavar="CHARACTER", help="Between the fields of CSV.  [,]")
@click.option(
    "--mapping", default="", metavar="FILE", help="A TOML file with [columns], [constants], [stages] and the others."
)
def import_command(kind: str, files: tuple[str, ...], out: str, mapping: str, **given: Any) -> None:
    """Turn data of other tools into events: containerd, csv, kubernetes, otlp, slurm, systemd. FILE may be -.

    Rows that cannot be used are counted and shown. docs/startup-import.md has an example of each kind.
    """
    from imagefs.startup.importers import Given, events, read

    known = _document(mapping) if mapping else {}
    tables = {
        name: {**known.pop(name, {}), **_pairs(given.pop(name), name)} for name in ("columns", "constants", "stages")
    }
    plain = {name: value or known.pop(name.replace("_", "-"), "") for name, value in given.items()}
    unknown = next(iter(known.keys() - {name.replace("_", "-") for name in given}), "")
    if unknown:
        raise ConfigError(f"{mapping} has the unknown key {unknown}", hint="docs/startup-import.md lists the keys")
    for stage in tables["stages"].values():
        if stage not in STAGES:
            raise ConfigError(f"{stage!r} is no stage", hint=f"stages are {', '.join(STAGES)}")
    delimiter = plain["delimiter"].replace("\\t", "\t") or ","
    if len(delimiter) != 1:
        raise ConfigError(f"the delimiter {delimiter!r} is not one character")
    zone = _zone(plain["zone"])
    try:
        origin = events.time_ns(plain["origin"], zone) if plain["origin"] else None
    except ValueError as error:
        raise ConfigError(f"--origin: {error}", hint="write it like 2026-01-31T12:00:00Z") from error
    wanted = Given(
        job=plain["job"], run=plain["run"], node=plain["node"], zone=zone, origin=origin,
        time_format=plain["time_format"] or "iso", delimiter=delimiter, **tables,
    )  # fmt: skip
    imported = read(kind, [Path("/dev/stdin" if file == "-" else file) for file in files], wanted)
    _tell(imported, files)
    nameless = sum("run" not in event for event in imported.events)
    if nameless:
        sys.stderr.write(f"{nameless} events name no run; --run makes them a start\n")
    if not imported.events:
        raise FormatError(f"nothing of {' '.join(files)} tells of a start", hint=f"is it of the kind {kind}?")
    text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in imported.events)
    if out:
        _write(Path(out), f"import-{kind}", text)
    else:
        sys.stdout.write(text)


def _tell(imported: Imported, files: tuple[str, ...]) -> None:
    """Counts, and the first rejected rows, on standard error."""
    lines = [f"{len(imported.events)} events from {len(files)} files, {len(imported.rejected)} rows rejected"]
    lines += [f"{one.file}:{one.line}: {one.why}" for one in imported.rejected[:_SHOWN]]
    if len(imported.rejected) > _SHOWN:
        lines.append(f"and {len(imported.rejected) - _SHOWN} more rejected")
    over = sorted(imported.passed_over.items(), key=lambda item: -item[1])
    if over:
        named = ", ".join(f"{count} {what}" for what, count in over[:_SHOWN])
        lines.append(f"{sum(imported.passed_over.values())} rows say nothing about a start: {named}")
    shown = ("".join(one if one.isprintable() else "?" for one in line) for line in lines)
    sys.stderr.writelines(f"{line}\n" for line in shown)


def _write(folder: Path, stem: str, text: str) -> None:
    """A file named after its content, so that data imported twice are there once."""
    path = folder / f"{stem}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_output(path, [text])
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="check --out") from error
    sys.stderr.write(f"{path}\n")


def _document(file: str) -> dict[str, Any]:
    import tomllib

    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint="check --mapping") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    for name, value in document.items():
        pairs = value.values() if isinstance(value, dict) else [value]
        if isinstance(value, dict) != (name in ("columns", "constants", "stages")) or not all(
            isinstance(one, str) for one in pairs
        ):
            raise ConfigError(f"{name} in {file} is not what it must be", hint="docs/startup-import.md has an example")
    return document


def _pairs(texts: tuple[str, ...], what: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.rpartition("=") if what != "constants" else text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{text!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs


def _zone(name: str) -> tzinfo | None:
    if not name:
        return None
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (OSError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ConfigError(f"{name!r} is no time zone: {error}") from error
    except KeyError:
        raise ConfigError(
            f"{name!r} is no time zone of this host", hint="write it like Europe/Berlin, or UTC"
        ) from None


_CHARTS = ("timeline", "breakdown", "spread", "critical-path", "growth", "comparison")


@click.command("export")
@click.argument("paths", metavar="FILE|DIR|URL...", nargs=-1, required=True)
@click.option("--format", "form", required=True, type=click.Choice(("perfetto", "otlp", "svg", "html")),
              help="perfetto, otlp (JSON lines), svg (one chart) or html (a page).")  # fmt: skip
@click.option("-o", "--out", required=True, metavar="OUT", help="The file to write; - is standard output.")
@click.option("--before", multiple=True, metavar="FILE|DIR|URL", help="Starts to compare with, for html and svg.")
@click.option("--run", default="", help="Only this run; svg shows the slowest start of several.")
@click.option("--chart", default="timeline", type=click.Choice(_CHARTS), help="The chart of svg.  [timeline]")
def export_command(paths: tuple[str, ...], form: str, out: str, before: tuple[str, ...], run: str, chart: str) -> None:
    """Write starts for Perfetto, OpenTelemetry, as a chart, or as a page that needs nothing else."""
    if form in ("perfetto", "otlp"):
        _write_lines(out, _events(paths, form, run))
    else:
        sides = [("before", before), ("after", paths)] if before else [("", paths)]
        _write_lines(out, [_picture(sides, form, run, chart)])


def _events(places: tuple[str, ...], form: str, run: str) -> Iterable[str]:
    from imagefs.startup.exports import read_events, to_otlp, to_perfetto

    files = read_events(places)
    notes = [f"{files.bad_lines} lines are no events and left out"] if files.bad_lines else []
    sys.stderr.writelines(f"{note}\n" for note in [*notes, *files.damaged])
    events = [event for event in files.events if not run or event.get("run") == run]
    if not events:
        raise FormatError(f"no events{f' of the run {run}' if run else ''} in {' '.join(places)}")
    return to_otlp(events) if form == "otlp" else [to_perfetto(events) + "\n"]


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


def _write_lines(out: str, parts: Iterable[str]) -> None:
    if out == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as pages and pictures say, whatever the locale
        sys.stdout.writelines(parts)
        return
    try:
        write_output(out, parts)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}", hint="check -o") from error
