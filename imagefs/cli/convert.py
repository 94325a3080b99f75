"""`imagefs convert docker://HOST/NAME:TAG`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from imagefs.cli.common import flags, json_flag, opened, quiet_flag, settings_for, show_made
from imagefs.cli.progress import shown
from imagefs.reference import Reference
from stripefs.cli.exit_errors import ended_by_sigterm
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import ConfigError
from stripefs.settings import redact

__all__ = ["command"]


@click.command("convert", cls=SettingsCommand)
@click.argument("image", metavar="docker://HOST/NAME:TAG")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="TRACE",
    help="What starts touched: a file, or STORE#TAG[/WORKLOAD[/NAME]]; may be repeated.  [those of the newest lazy "
    "image of the repository]",
)
@click.option("--no-trace", is_flag=True, help="Make no hot device.")
@click.option("--platform", default="", metavar="OS/ARCH", help="Which image of several.  [this host's]")
@click.option(
    "--authfile", default="", metavar="FILE", help="Credentials for the registry.  [those of docker and podman]"
)
@click.option("--plain-http", is_flag=True, help="Speak plain http with the registry.")
@json_flag
@quiet_flag
@flags("build", "store", also=["io-timeout"])
@click.pass_context
def command(
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
    publishes nothing, and the next one goes on from what it stored.
    """
    from imagefs.build.pipeline import BuildOptions, make_image
    from imagefs.build.pull import Registry, repository_of
    from imagefs.cli.traces import gather
    from imagefs.reference import Platform
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
    how = BuildOptions(
        Path(settings.tmp),
        settings.limits,
        Platform.parse(platform) if platform else Platform.here(),
        Registry(authfile, not plain_http, settings.daemon.io_timeout),
    )
    began = time.monotonic()
    with ended_by_sigterm(), opened(settings) as images, shown(quiet=quiet) as progress:
        found = [] if no_trace else gather(traces, settings) if traces else newest_traces(images)
        made = make_image(image, images, how, traces=found, progress=progress)
    show_made(place, made, time.monotonic() - began, as_json=as_json, quiet=quiet)
