"""`imagefs install`."""

from __future__ import annotations

import os

import click

from imagefs.cli.options import daemon_flags, settings_of
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import ConfigError, MountError

__all__ = ["command"]


@click.command("install", cls=SettingsCommand)
@click.option("--print", "only_print", is_flag=True, help="Print the units, and change nothing.")
@click.option("--enable", is_flag=True, help="Start the services now and with every boot.")
@click.option("--remove", "removing", is_flag=True, help="Stop the services and remove their units.")
@click.option("--force", is_flag=True, help="Also units that were edited; with --remove also while containers run.")
@click.option(
    "--prefix", default="/", show_default=True, metavar="DIR", help="Write below this folder, and leave systemd alone."
)
@click.option(
    "--bin", "commands", default="", metavar="DIR", help="The commands' folder.  [where this program was installed]"
)
@daemon_flags
@click.pass_context
def command(
    ctx: click.Context, only_print: bool, enable: bool, removing: bool, force: bool, prefix: str, commands: str
) -> None:
    """Have systemd run `imagefs daemon` and `imagefs snapshotter`, and know of mounts of stripefs (stripefs@NAME).

    Their settings are in /etc/bootseer/imagefs.toml. The services are up before containerd. What is written is written
    again by the next version; `systemctl edit` keeps changes.
    """
    from imagefs import install
    from imagefs.install import units

    elsewhere = os.path.abspath(prefix) != "/"
    if enable and (elsewhere or removing):
        raise ConfigError(f"--enable and --{'prefix' if elsewhere else 'remove'} contradict each other")
    paths = [os.path.join(os.path.abspath(commands), name) if commands else install.command_path(name)
             for name in ("imagefs", "stripefs")]  # fmt: skip
    made = units(*paths)
    if only_print:
        click.echo("\n".join(f"# /{install.FOLDER}/{name}\n{text}" for name, text in made.items()), nl=False)
        return
    if removing:
        if not elsewhere and not force:
            _refuse_while_used(ctx)
        if not elsewhere and _any_there(prefix, list(made)):
            install.reload("disable")
        outcomes = install.remove(list(made), prefix, force=force)
    else:
        outcomes = install.install(made, prefix, force=force)
    for name, outcome in outcomes.items():
        click.echo(f"{os.path.join(prefix, install.FOLDER, name)}: {outcome}")
    if not elsewhere:
        install.reload("enable" if enable else "")


def _any_there(prefix: str, names: list[str]) -> bool:
    from imagefs.install import FOLDER

    return any(os.path.exists(os.path.join(prefix, FOLDER, name)) for name in names)


def _refuse_while_used(ctx: click.Context) -> None:
    """Raises ConfigError while containers are on images of the daemon, which would end under them."""
    from imagefs.daemon.client import Client

    try:
        held = Client(settings_of(ctx).daemon).leases()
    except MountError:
        return  # none runs
    if held:
        raise ConfigError(
            f"{len(held)} containers or snapshots hold images of the daemon, which end with it",
            hint="drain the node first, or --force",
        )
