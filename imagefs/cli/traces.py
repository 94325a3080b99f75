"""The command `imagefs trace show|merge|diff`, and the traces that flags of other commands name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagefs.cli.common import flags, images_of, json_flag, opened, print_json, settings_for
from imagefs.config import Settings
from imagefs.format.trace import Trace
from imagefs.reference import Reference, parse_reference
from stripefs.cli.commands import SettingsCommand
from stripefs.cli.output import columns, duration, table
from stripefs.errors import ConfigError
from stripefs.units import format_size

if TYPE_CHECKING:
    from imagefs.build.optimize import OptimizeReport

__all__ = ["describe_hot_device", "gather_traces", "trace_command"]


def gather_traces(texts: Sequence[str], settings: Settings) -> list[Trace]:
    """The traces that the arguments of a command name, those that can be merged.

    Raises what naming or reading one raises, and ConfigError where none of them can be merged.
    """
    from imagefs.trace.references import complete

    found = [trace for text in texts for trace in _load(text, lambda: settings)]
    useful = complete(found)
    if texts and not useful:
        raise ConfigError(
            f"none of {len(found)} traces is complete", hint="`imagefs trace show` says what is wrong with them"
        )
    return useful


def _load(text: str, settings_of: Callable[[], Settings]) -> list[Trace]:
    """The traces that an argument names: of a file, or of a store, which alone needs settings."""
    from imagefs.trace.references import load_file, parse_traces, stored_traces

    reference = parse_traces(text)
    if isinstance(reference, Path):
        return [load_file(reference)]
    settings = settings_of()
    with opened(settings._replace(store=settings.store_at(reference.image.store))) as images:
        return stored_traces(images, reference.image.name, reference.workload, reference.name)


def describe_hot_device(report: OptimizeReport) -> str:
    """The content of a hot device, for people."""
    left_out = f", {report.left_out} left out" if report.left_out else ""
    return (
        f"{format_size(report.hot_bytes)} in {report.extents} extents ({format_size(report.stored_bytes)} stored), "
        f"from {report.traces} traces{left_out}"
    )


@click.group("trace", context_settings={"help_option_names": ["-h", "--help"]})
def trace_command() -> None:
    """Show the extents that starts touched, and plan the fetches of the next starts.

    A TRACE is a file, or STORE#TAG[/WORKLOAD[/NAME]].
    """


@trace_command.command("show", cls=SettingsCommand)
@click.argument("trace")
@json_flag
@flags("store")
@click.pass_context
def show(ctx: click.Context, trace: str, as_json: bool, config: str) -> None:
    """Show one trace, or list those of an image in a store.

    TRACE is a file or STORE#TAG/WORKLOAD/NAME for one, STORE#TAG or STORE#TAG/WORKLOAD for a list.
    """
    from imagefs.trace.diff import summary
    from imagefs.trace.references import parse_traces

    reference = parse_traces(trace)
    if not isinstance(reference, Path) and not reference.name:
        _list(ctx, reference.image, reference.workload, as_json, config)
        return
    (found,) = _load(trace, lambda: settings_for(ctx, config))
    facts = summary(found)
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write(_summary(facts))


@trace_command.command("merge", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("traces", nargs=-1, metavar="[TRACE]...")
@click.option(
    "--share", type=click.FloatRange(0, 1), default=0.5, help="Keep extents that this share of starts touched.  [0.5]"
)
@click.option("-n", "--dry-run", is_flag=True, help="Store nothing.")
@json_flag
@flags("store")
@click.pass_context
def merge(
    ctx: click.Context, image: str, traces: tuple[str, ...], share: float, dry_run: bool, as_json: bool, config: str
) -> None:
    """Make the plans of an image anew, from the traces that the store has of it and those given.

    Those given become traces of the image. A plan says for one workload which blocks the next start fetches first, in
    what order.
    """
    from imagefs.repository.traces import Traces
    from imagefs.trace.references import adopt, complete, open_image, plan_for, stored_traces

    reference = parse_reference(image)
    others = gather_traces(traces, settings_for(ctx, config))
    rows = []
    with images_of(ctx, config, reference.store) as images:
        digest = images.resolve(reference.name)
        target = open_image(images, digest)
        found = complete(stored_traces(images, digest)) + others
        if not found:
            raise ConfigError(f"there is no complete trace of {reference}", hint="mount or run it, or name one")
        if not dry_run:
            adopt(images, digest, others)
        for workload in sorted({trace.workload for trace in found}):
            plan, merged = plan_for(target, workload, [one for one in found if one.workload == workload], share)
            if not dry_run:
                Traces(images.repository).put_plan(plan)
            rows.append({
                "workload": workload,
                "traces": merged.traces,
                "extents": len(merged.wanted),
                "blocks": plan.blocks,
                "by_digest": merged.by_digest,
                "by_path": merged.by_path,
                "missing": merged.missing,
            })  # fmt: skip
    if as_json:
        print_json({"image": digest, "plans": rows})
        return
    heads = ["WORKLOAD", "TRACES", "EXTENTS", "BLOCKS", "BY CONTENT", "BY PLACE", "NOT FOUND"]
    sys.stdout.write(columns(heads, [[str(cell) for cell in row.values()] for row in rows]) + "\n")


@trace_command.command("diff", cls=SettingsCommand)
@click.argument("first")
@click.argument("second")
@json_flag
@flags("store")
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, as_json: bool, config: str) -> None:
    """Show the differences of two traces: extents of one alone, changed contents, another order.

    Each is a file or STORE#TAG/WORKLOAD/NAME; with STORE#TAG/WORKLOAD the newest is taken.
    """
    from imagefs.trace.diff import diff as compare

    found = compare(_one(ctx, first, config), _one(ctx, second, config)).to_json()
    if as_json:
        print_json(found)
        return
    rows = [
        ("only in the first", _many(found["only_first"])),
        ("only in the second", _many(found["only_second"])),
        ("in both", f"{found['same']} extents"),
        ("content changed", _many(found["changed"])),
        ("moved", f"{len(found['moved'])} extents"),
        ("in the same order", f"{found['in_order']:.0%}"),
    ]
    parts = [table(rows)]
    for title, key in (("ONLY IN THE FIRST", "only_first"), ("ONLY IN THE SECOND", "only_second")):
        if touches := found[key]["list"]:
            parts.append(columns([title, "OFFSET", "BYTES", "MS"], [_cells(touch) for touch in touches]))
    sys.stdout.write("\n\n".join(parts) + "\n")


def _one(ctx: click.Context, text: str, config: str) -> Any:
    """The trace that an argument of `diff` names."""
    found = _load(text, lambda: settings_for(ctx, config))
    if not found:
        raise ConfigError(f"{text} names no trace", hint="`imagefs trace show STORE#TAG` lists those of an image")
    return max(found, key=lambda trace: trace.started)


def _list(ctx: click.Context, image: Reference, workload: str, as_json: bool, config: str) -> None:
    from imagefs.repository.traces import Traces

    with images_of(ctx, config, image.store) as images:
        digest = images.resolve(image.name)
        base = images.manifest(digest).base or digest
        traces = Traces(images.repository)
        rows = []
        for one in [workload] if workload else sorted(traces.workloads(base)):
            for name in traces.names(base, one):
                trace = traces.load(base, one, name)
                facts = {key: getattr(trace, key) for key in ("node", "started", "seconds", "ended_by", "complete")}
                extents = {"extents": len(trace.touches), "bytes": trace.touched_bytes}
                rows.append({"workload": one, "name": name, **facts, **extents})
        plans = [
            {"workload": one, "traces": plan.traces, "blocks": plan.blocks}
            for owner, one in traces.plans()
            if owner == digest and workload in ("", one) and (plan := traces.plan(digest, one))
        ]
    if as_json:
        print_json({"image": digest, "base": base, "traces": rows, "plans": plans})
        return
    heads = ["TRACE", "NODE", "STARTED", "SECONDS", "ENDED BY", "COMPLETE", "EXTENTS", "TOUCHED"]
    parts = [columns(heads, [_row(row) for row in rows])] if rows else ["there are no traces"]
    parts += [f"plan {one['workload']}: {one['blocks']} blocks from {one['traces']} traces" for one in plans]
    sys.stdout.write("\n".join(parts) + "\n")


def _row(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['workload']}/{row['name']}",
        row["node"],
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["started"])),
        f"{row['seconds']:.1f}",
        row["ended_by"],
        "yes" if row["complete"] else "no",
        str(row["extents"]),
        format_size(row["bytes"]),
    ]


def _summary(facts: Mapping[str, Any]) -> str:
    rows = [
        ("image", facts["image"]),
        ("workload", facts["workload"]),
        ("node", facts["node"]),
        ("started", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["started"]))),
        ("recorded", f"{duration(facts['seconds'])}, ended by {facts['ended_by']}"),
        ("complete", "yes" if facts["complete"] else f"no: {facts['reason']}"),
        ("touched", f"{format_size(facts['bytes'])} in {facts['extents']} extents of {facts['files']} files"),
        ("the last", f"after {facts['last_ms']} ms"),
    ]
    return "\n\n".join([
        table(rows),
        columns(["UNTIL MS", "TOUCHED"], [[str(one["ms"]), format_size(one["bytes"])] for one in facts["timeline"]]),
        columns(["FILE", "TOUCHED"], _sizes(facts["top_files"])),
        columns(["FOLDER", "TOUCHED"], _sizes(facts["top_folders"])),
    ]) + "\n"  # fmt: skip


def _sizes(entries: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [[f"/{entry['path']}", format_size(entry["bytes"])] for entry in entries]


def _many(found: Mapping[str, Any]) -> str:
    return f"{found['extents']} extents, {format_size(found['bytes'])}"


def _cells(touch: Mapping[str, Any]) -> list[str]:
    return [f"/{touch['path']}", str(touch["offset"]), str(touch["bytes"]), str(touch["ms"])]
