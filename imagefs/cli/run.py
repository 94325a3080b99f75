"""`imagefs run STORE#TAG -- COMMAND`."""

from __future__ import annotations

from typing import Literal

import click

from imagefs.cli.options import image_and_settings, recording, recording_flags, use_flags
from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("run", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
@click.option("--bind", "binds", multiple=True, metavar="SRC:DST[:ro]", help="Show SRC of the host at DST.")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or hand on the one set here.")
@click.option("--workdir", default="", metavar="DIR", help="Where the command starts.  [the image's]")
@click.option("--user", default="", metavar="USER[:GROUP]", help="Who runs it, by name or number.  [the image's]")
@click.option("--entrypoint", default=None, metavar="PATH", help="In place of the image's; '' for none.")
@click.option("--hostname", default="", metavar="NAME", help="The container's host name.  [the host's]")
@click.option(
    "--network", type=click.Choice(["host", "none"]), default="host", help="The host's network, or none.  [host]"
)
@click.option("--device", "devices", multiple=True, metavar="PATH", help="Give the container this device.")
@click.option("--memory", default="", metavar="SIZE", help="Most memory of the container.  [no limit]")
@click.option("--cpus", default="", metavar="N", help="Most processors it may keep busy, such as 1.5.  [no limit]")
@click.option("--pids-limit", default="", metavar="N", help="Most processes and threads in it.  [no limit]")
@click.option("--cgroup-parent", default="/", metavar="PATH", help="Its cgroup is made below this one.  [/]")
@click.option("--tty/--no-tty", default=None, help="Whether there is a terminal.  [when there is one here]")
@click.option("--oci-runtime", default="auto", metavar="NAME", help="runc, crun, or a path.  [whichever is there]")
@click.option(
    "--plane", type=click.Choice(["auto", "erofs", "tree"]), default="auto", help="Who shows the tree, as for mount."
)
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@recording_flags
@use_flags("memory")
@click.pass_context
def command(
    ctx: click.Context,
    image: str,
    arguments: tuple[str, ...],
    binds: tuple[str, ...],
    env: tuple[str, ...],
    workdir: str,
    user: str,
    entrypoint: str | None,
    hostname: str,
    network: Literal["host", "none"],
    devices: tuple[str, ...],
    memory: str,
    cpus: str,
    pids_limit: str,
    cgroup_parent: str,
    tty: bool | None,
    oci_runtime: str,
    plane: Literal["auto", "erofs", "tree"],
    rw: bool,
    backing: Literal["auto", "file", "loop"],
    workload: str,
    ready_file: str,
    no_record: bool,
    config: str,
) -> int:
    """Run a container from an image, by runc or crun, and end with the status of its command.

    COMMAND takes the place of the image's own. A job that says when it has started
    creates the file $IMAGEFS_READY; else the start is over when the command ends, or after --record-seconds.
    """
    from imagefs import containers
    from imagefs.daemon.client import Client
    from imagefs.plane.options import TreeOptions
    from imagefs.run.options import Bind, Limits, RunOptions, parse_cgroup

    name, settings = image_and_settings(ctx, image, config)
    options = RunOptions(
        command=arguments,
        entrypoint=None if entrypoint is None else ((entrypoint,) if entrypoint else ()),
        writable=rw,
        binds=[Bind.parse(text) for text in binds],
        env=env,
        workdir=workdir,
        user=user,
        hostname=hostname,
        network=network,
        devices=devices,
        terminal=tty,
        runtime=oci_runtime,
        limits=Limits.parse(memory, cpus, pids_limit),
        cgroup_parent=parse_cgroup(cgroup_parent),
    )
    return containers.run(
        Client(settings.daemon),
        settings.store,
        name,
        options,
        TreeOptions(plane=plane, backing=backing),
        recording(workload, ready_file, no_record),
    )
