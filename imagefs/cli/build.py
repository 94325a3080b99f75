"""`imagefs build SRC STORE`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from imagefs.cli.common import flags, json_flag, opened, quiet_flag, settings_for, show_made
from imagefs.cli.progress import shown
from imagefs.reference import Reference, parse_store
from stripefs.cli.exit_errors import ended_by_sigterm
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import ConfigError

__all__ = ["command"]


@click.command("build", cls=SettingsCommand)
@click.argument("source", metavar="SRC")
@click.argument("store")
@click.option("-t", "--tag", default="", metavar="TAG", help="Name the image so, whatever had that name before.")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="TRACE",
    help="What starts touched: a file, or STORE#TAG[/WORKLOAD[/NAME]]; may be repeated.  [those of the image that TAG "
    "names so far]",
)
@click.option("--no-trace", is_flag=True, help="Make no hot device.")
@click.option("--platform", default="", metavar="OS/ARCH", help="Which image of several.  [this host's]")
@click.option("--authfile", default="", metavar="FILE", help="Credentials for the registry.  [skopeo's own]")
@click.option("--src-tls-verify/--no-src-tls-verify", default=True, help="Insist on https and its certificates.")
@click.option("--layers", type=click.IntRange(0), default=0, metavar="N", help="Only the N lowest layers.  [all]")
@json_flag
@quiet_flag
@flags("build", "store", also=["io-timeout"])
@click.pass_context
def command(
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

    SRC is oci:LAYOUT[:REF], dir:PATH or docker://REFERENCE. STORE is a URL or a directory, which may be new. What the
    store has already is not stored again. A build that is interrupted publishes nothing, and the next one goes on from
    what it stored. Where there are traces, what they say is touched first is copied into a hot device.
    """
    from imagefs.build.pipeline import BuildOptions, make_image
    from imagefs.build.pull import Registry
    from imagefs.cli.traces import gather
    from imagefs.reference import Platform

    if traces and no_trace:
        raise ConfigError("--trace and --no-trace contradict each other")
    place = Reference(parse_store(store), tag)
    settings = settings_for(ctx, config, place.store)
    how = BuildOptions(
        Path(settings.tmp),
        settings.limits,
        Platform.parse(platform) if platform else Platform.here(),
        Registry(authfile, src_tls_verify, settings.daemon.io_timeout),
        layers,
    )
    began = time.monotonic()
    with ended_by_sigterm(), opened(settings, make=True) as images, shown(quiet=quiet) as progress:
        found = [] if no_trace else gather(traces, settings) if traces else None
        made = make_image(source, images, how, tag=tag, traces=found, progress=progress)
    took = time.monotonic() - began
    show_made(place, made, took, as_json=as_json, quiet=quiet)
