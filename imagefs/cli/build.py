"""Commands that make images: `build`, `convert`, `optimize`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagefs.cli.common import (
    flags,
    images_of,
    json_flag,
    opened,
    print_json,
    progress_bar,
    quiet_flag,
    settings_for,
)
from imagefs.reference import Platform, Reference, parse_reference, parse_store
from stripefs.cli.commands import SettingsCommand
from stripefs.cli.output import ended_by_sigterm, table
from stripefs.errors import ConfigError
from stripefs.settings import redact
from stripefs.units import format_size

if TYPE_CHECKING:
    from imagefs.build.pipeline import BuildOptions, Built
    from imagefs.config import Settings

__all__ = ["build_command", "convert_command", "optimize_command", "show_made"]

_no_trace = click.option("--no-trace", is_flag=True, help="Make no hot device.")
_platform = click.option(
    "--platform", default="", metavar="OS/ARCH", help="Platform whose image is taken, of several.  [this host's]"
)


@click.command("build", cls=SettingsCommand)
@click.argument("source", metavar="SRC")
@click.argument("store")
@click.option("-t", "--tag", default="", metavar="TAG", help="Name the image so, whatever had that name before.")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="TRACE",
    help="Trace of the reads of a start: a file, or STORE#TAG[/WORKLOAD[/NAME]]; may be repeated.  "
    "[those of the image that TAG names so far]",
)
@_no_trace
@_platform
@click.option("--authfile", default="", metavar="FILE", help="Credentials for the registry.  [skopeo's own]")
@click.option("--src-tls-verify/--no-src-tls-verify", default=True, help="Insist on https and its certificates.")
@click.option("--layers", type=click.IntRange(0), default=0, metavar="N", help="Only the N lowest layers.  [all]")
@json_flag
@quiet_flag
@flags("build", "store", also=["io-timeout"])
@click.pass_context
def build_command(
    ctx: click.Context,
    source: str,
    store: str,
    tag: str,
    traces: tuple[str, ...],
    no_trace: bool,
    platform: str,
    authfile: str,
    src_tls_verify: bool,
    layers: int,
    as_json: bool,
    quiet: bool,
    config: str,
) -> None:
    """Make an image of SRC in STORE.

    SRC is oci:LAYOUT[:REF], dir:PATH or docker://REFERENCE. STORE is a URL or a directory, which may be new. Blocks of
    the store are not stored again. An interrupted build publishes nothing, and the next one continues from its blocks.
    Where there are traces, the extents that they name are copied into a hot device.
    """
    from imagefs.build.pipeline import make_image
    from imagefs.cli.traces import gather_traces

    if traces and no_trace:
        raise ConfigError("--trace and --no-trace contradict each other")
    place = Reference(parse_store(store), tag)
    settings = settings_for(ctx, config, place.store)
    how = _options(settings, platform, authfile, verify=src_tls_verify, lowest=layers)
    began = time.monotonic()
    with ended_by_sigterm(), opened(settings, make=True) as images, progress_bar(quiet=quiet) as progress:
        found = [] if no_trace else gather_traces(traces, settings) if traces else None
        made = make_image(source, images, how, tag=tag, traces=found, progress=progress)
    took = time.monotonic() - began
    show_made(place, made, took, as_json=as_json, quiet=quiet)


@click.command("convert", cls=SettingsCommand)
@click.argument("image", metavar="docker://HOST/NAME:TAG")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="TRACE",
    help="Trace of the reads of a start: a file, or STORE#TAG[/WORKLOAD[/NAME]]; may be repeated.  "
    "[those of the newest lazy image of the repository]",
)
@_no_trace
@_platform
@click.option(
    "--authfile", default="", metavar="FILE", help="Credentials for the registry.  [those of docker and podman]"
)
@click.option("--plain-http", is_flag=True, help="Speak plain http with the registry.")
@json_flag
@quiet_flag
@flags("build", "store", also=["io-timeout"])
@click.pass_context
def convert_command(
    ctx: click.Context,
    image: str,
    traces: tuple[str, ...],
    no_trace: bool,
    platform: str,
    authfile: str,
    plain_http: bool,
    as_json: bool,
    quiet: bool,
    config: str,
) -> None:
    """Make a lazy image of a container image and attach it to that, in the same repository of its registry.

    Hosts that pull the container image by its name then find the lazy one. The container image and its tags stay as
    they are. Blocks that lazy images of the repository have are not stored again. A conversion that is interrupted
    publishes nothing, and the next one continues from its objects.
    """
    from imagefs.build.pipeline import make_image
    from imagefs.build.pull import repository_of
    from imagefs.cli.traces import gather_traces
    from imagefs.repository.store import registry_url
    from imagefs.trace.references import newest_traces

    if traces and no_trace:
        raise ConfigError("--trace and --no-trace contradict each other")
    if not image.startswith("docker://"):
        raise ConfigError(
            f"{redact(image)!r} is no image of a registry", hint=f"write docker://{image.rpartition('://')[2]}"
        )
    parameters = {"scheme": "http" if plain_http else "", "authfile": authfile}
    place = Reference(registry_url(*repository_of(image), **parameters))
    settings = settings_for(ctx, config, place.store)
    how = _options(settings, platform, authfile, verify=not plain_http)
    began = time.monotonic()
    with ended_by_sigterm(), opened(settings) as images, progress_bar(quiet=quiet) as progress:
        found = [] if no_trace else gather_traces(traces, settings) if traces else newest_traces(images)
        made = make_image(image, images, how, traces=found, progress=progress)
    show_made(place, made, time.monotonic() - began, as_json=as_json, quiet=quiet)


def _options(settings: Settings, platform: str, authfile: str, *, verify: bool, lowest: int = 0) -> BuildOptions:
    """Of a build with these settings. Raises ConfigError for what is no platform."""
    from imagefs.build.pipeline import BuildOptions
    from imagefs.build.pull import Registry

    wanted = Platform.parse(platform) if platform else Platform.current()
    registry = Registry(authfile, verify, settings.daemon.io_timeout)
    folder, compression = Path(settings.tmp), settings.daemon.compression
    return BuildOptions(folder, settings.limits, wanted, registry, lowest, compression)


@click.command("optimize", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.option(
    "--workload", "workloads", multiple=True, metavar="NAME", help="Only for this one; may be repeated.  [all]"
)
@click.option(
    "--trace", "traces", multiple=True, metavar="TRACE", help="Also this: a file, or STORE#TAG[/WORKLOAD[/NAME]]."
)
@click.option(
    "--share", type=click.FloatRange(0, 1), default=0.5, help="Copy extents that this share of starts touched.  [0.5]"
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
@flags("store", also=["compression", "link-rate"])
@click.pass_context
def optimize_command(
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
    """Copy the extents that starts touch first into a hot device, in that order, to be read as one stream.

    Takes the traces that the store has of the image, and those given. TAG then names the result; the image as it was
    built stays. Mounts that are there go on as they are.
    """
    from imagefs.build.optimize import optimize
    from imagefs.cli.traces import describe_hot_device, gather_traces
    from imagefs.trace.references import adopt, complete, stored_traces

    reference = parse_reference(image)
    settings = settings_for(ctx, config, reference.store)
    with images_of(ctx, config, reference.store) as images, progress_bar(quiet=quiet) as progress:
        if replication and not images.repository.capabilities.replication:
            raise ConfigError(
                f"{images.url} lets nobody choose how many replicas an object has",
                hint="leave --replication out: it is for images in HDFS",
            )
        digest = images.resolve(reference.name)
        own = [trace for one in workloads or ("",) for trace in complete(stored_traces(images, digest, one))]
        others = [trace for trace in gather_traces(traces, settings) if not workloads or trace.workload in workloads]
        name = tag or (reference.name if not digest.startswith(reference.name) else "")
        report = optimize(
            images,
            digest,
            own + others,
            tag=name,
            share=share,
            replication=replication or 0,
            compression=settings.daemon.compression,
            progress=progress,
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
            ("hot device", describe_hot_device(report)),
            *([("replicas", str(replication))] if replication else []),
            ("newly stored", format_size(report.new_bytes)),
            ("found", found),
            *(("plan", f"{workload}: {blocks} blocks") for workload, blocks in report.plan_blocks.items()),
        ]
        sys.stdout.write(table(rows) + "\n")


def show_made(place: Reference, made: Built, seconds: float, *, as_json: bool, quiet: bool) -> None:
    """Print what was built at `place`, which has the tag as its name."""
    if as_json:
        document = {"store": str(Reference(place.store)), "tag": place.name, **asdict(made)}
        print_json(document | {"seconds": round(seconds, 3)})
        return
    if quiet:
        sys.stdout.write(made.digest + "\n")
        return
    from imagefs.cli.traces import describe_hot_device

    built, hot = made.built, made.hot
    stored = f"{format_size(built.stored_bytes)} in {built.blocks} blocks, {format_size(built.new_bytes)} new"
    rows = [
        ("image", str(Reference(place.store, place.name or made.digest))),
        ("digest", made.digest),
        ("files", str(built.files)),
        ("stored", stored),
        ("metadata", format_size((hot or built).metadata_bytes)),
        ("hot device", describe_hot_device(hot) if hot else ""),
        ("time", f"{seconds:.1f} s"),
    ]
    sys.stdout.write(table(rows) + "\n")
