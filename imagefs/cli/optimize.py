"""`imagefs optimize STORE#TAG`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from imagefs.cli.common import flags, images_of, json_flag, print_json, quiet_flag, settings_for
from imagefs.cli.progress import shown
from imagefs.reference import Reference, parse_reference
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.output import table
from stripefs.errors import ConfigError
from stripefs.units import format_size

__all__ = ["command"]


@click.command("optimize", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.option(
    "--workload", "workloads", multiple=True, metavar="NAME", help="Only for this one; may be repeated.  [all]"
)
@click.option(
    "--trace", "traces", multiple=True, metavar="TRACE", help="Also this: a file, or STORE#TAG[/WORKLOAD[/NAME]]."
)
@click.option(
    "--share", type=click.FloatRange(0, 1), default=0.5, help="Copy what this share of starts touched.  [0.5]"
)
@click.option(
    "--replication",
    type=click.IntRange(1, 512),
    metavar="N",
    help="Have HDFS keep N replicas of the hot device's packs.  [the store's own number]",
)
@click.option("-t", "--tag", default="", metavar="NEW", help="Name the result so.  [TAG]")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def command(
    ctx: click.Context,
    image: str,
    workloads: tuple[str, ...],
    traces: tuple[str, ...],
    share: float,
    replication: int | None,
    tag: str,
    as_json: bool,
    quiet: bool,
    config: str,
) -> None:
    """Copy what starts touch first into a hot device, in that order, so that one sequential read brings it.

    Takes the traces that the store has of the image, and those given. TAG then names the result; the image as it was
    built stays. Mounts that are there go on as they are.
    """
    from imagefs.build.optimize import optimize
    from imagefs.cli.traces import gather, words
    from imagefs.trace.references import adopt, complete, stored_traces

    reference = parse_reference(image)
    settings = settings_for(ctx, config, reference.store)
    with images_of(ctx, config, reference.store) as images, shown(quiet=quiet) as progress:
        if replication and not images.repository.capabilities.replication:
            raise ConfigError(
                f"{images.url} lets nobody choose how many replicas an object has",
                hint="leave --replication out: it is for images in HDFS",
            )
        digest = images.resolve(reference.name)
        own = [trace for one in workloads or ("",) for trace in complete(stored_traces(images, digest, one))]
        others = [trace for trace in gather(traces, settings) if not workloads or trace.workload in workloads]
        name = tag or (reference.name if not digest.startswith(reference.name) else "")
        report = optimize(
            images, digest, own + others, tag=name, share=share, replication=replication or 0, progress=progress
        )
        adopt(images, report.digest, others)
    if as_json:
        facts = {"store": str(Reference(reference.store)), "tag": name, "replication": replication}
        print_json(facts | asdict(report))
    elif quiet:
        sys.stdout.write(report.digest + "\n")
    else:
        found = f"{report.by_digest} by content, {report.by_path} by place, {report.missing} not at all"
        rows = [
            ("image", str(Reference(reference.store, name or report.digest))),
            ("digest", report.digest),
            ("made from", report.base),
            ("hot device", words(report)),
            *([("replicas", str(replication))] if replication else []),
            ("newly stored", format_size(report.new_bytes)),
            ("found", found),
            *(("plan", f"{workload}: {blocks} blocks") for workload, blocks in report.plan_blocks.items()),
        ]
        sys.stdout.write(table(rows) + "\n")
