"""`imagefs podman add|rm`."""

from __future__ import annotations

import click

from imagefs.cli.options import daemon_flags, image_and_settings, plain_flags, settings_of
from imagefs.cli.plain import CONFIG, RECORDING
from imagefs.config import IMAGEFS
from stripefs.cli.flags import SettingsCommand, settings_flags

__all__ = ["command"]

_root = click.option(
    "--root",
    default="/var/lib/bootseer/podman",
    show_default=True,
    metavar="DIR",
    help="The image store that storage.conf names in additionalimagestores.",
)
_WORKLOAD = tuple(flag for flag in RECORDING if flag.name == "workload")


@click.group("podman", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Show images to podman and buildah, which run them and build on them as if they had pulled them.

    For root. storage.conf names the directory of these images: additionalimagestores = ["/var/lib/bootseer/podman"].
    """


@command.command("add", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("name")
@_root
@plain_flags([CONFIG, *_WORKLOAD])
@settings_flags("store", "daemon", options=IMAGEFS)
@click.pass_context
def add(ctx: click.Context, image: str, name: str, root: str, workload: str, config: str) -> None:
    """Let podman and buildah have the image as NAME.

    Comes back when containers can be started; their bytes come when they are touched. To be done again after a restart
    of the machine or of the daemon.
    """
    from imagefs.daemon.client import Client
    from imagefs.podman import ImageStore

    tag, settings = image_and_settings(ctx, image, config)
    client = Client(settings.daemon, settings.asked)
    click.echo(ImageStore(client, root).add(settings.store, tag, name, workload=workload))


@command.command("rm", cls=SettingsCommand)
@click.argument("name")
@_root
@daemon_flags
@click.pass_context
def remove(ctx: click.Context, name: str, root: str) -> None:
    """Take NAME away. Containers of the image have to be gone."""
    from imagefs.daemon.client import Client
    from imagefs.podman import ImageStore

    ImageStore(Client(settings_of(ctx).daemon), root).remove(name)
