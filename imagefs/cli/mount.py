"""`imagefs mount STORE#TAG DIR`."""

from __future__ import annotations

from typing import Literal

import click

from imagefs.cli.options import image_and_settings, plain_flags
from imagefs.cli.plain import CONFIG, RECORDING, TREE, recording
from imagefs.config import IMAGEFS
from stripefs.cli.flags import SettingsCommand, settings_flags

__all__ = ["command"]


@click.command("mount", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("mountpoint", type=click.Path())
@click.option(
    "--plane",
    type=click.Choice(["auto", "erofs", "tree"]),
    default="auto",
    help="Who shows the tree: the kernel's EROFS (auto for root), or a process, which needs no root.",
)
@plain_flags([CONFIG, *RECORDING, *TREE])
@settings_flags("store", "daemon", options=IMAGEFS)
@click.pass_context
def command(
    ctx: click.Context,
    image: str,
    mountpoint: str,
    plane: Literal["auto", "erofs", "tree"],
    rw: bool,
    backing: Literal["auto", "file", "loop"],
    workload: str,
    ready_file: str,
    no_record: bool,
    config: str,
) -> None:
    """Show the tree of an image below the empty directory MOUNTPOINT.

    STORE#TAG or STORE#DIGEST names the image. Comes back when the tree is there; its bytes come when they are touched.
    The daemon behind it is started when none runs. `imagefs umount` takes the mount away.
    """
    from imagefs import mounts
    from imagefs.daemon.client import Client
    from imagefs.settings import TreeOptions

    name, settings = image_and_settings(ctx, image, config)
    record = recording(workload, ready_file, no_record)
    options = TreeOptions(rw=rw, plane=plane, backing=backing)
    mounts.mount(Client(settings.daemon, settings.asked), settings.store, name, mountpoint, options, record)
