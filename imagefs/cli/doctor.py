"""`imagefs doctor`."""

from __future__ import annotations

import click

from imagefs.cli.common import print_json
from imagefs.cli.options import settings_of
from imagefs.config import IMAGEFS
from imagefs.snapshotter.containerd_config import ROOT, SOCKET
from stripefs.cli.flags import SettingsCommand, settings_flags

__all__ = ["command"]


@click.command("doctor", cls=SettingsCommand)
@click.argument("stores", metavar="[STORE]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--no-write", is_flag=True, help="Make no file in the stores, not for a moment.")
@click.option(
    "--containerd-config",
    "containerd",
    default="/etc/containerd/config.toml",
    show_default=True,
    metavar="FILE",
    help="containerd's configuration.",
)
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", also=["cache", "cache-size", "runtime", "log-level"], options=IMAGEFS)
@click.pass_context
def command(
    ctx: click.Context, stores: tuple[str, ...], as_json: bool, no_write: bool, containerd: str, config: str
) -> int:
    """Look at what this host can do for images, and at each STORE; say what is missing, what that costs, what to do.

    Without a STORE those are looked at that the configuration names (snapshotter.stores, deps.store).

    Exit code 1 where something that was asked for does not work.
    """
    from imagefs.doctor.examine import ExaminedHost, examine
    from imagefs.doctor.finding import exit_code, lines

    settings = settings_of(ctx, config=config)
    configured = dict.fromkeys(url for url in (*settings.snapshotter.stores, settings.deps.store) if url)
    named = [settings.store_at(url) for url in stores or configured]
    host = ExaminedHost(settings.daemon, named, SOCKET, ROOT, containerd, not no_write)
    findings = []
    for finding in examine(host):
        findings.append(finding)
        if not as_json:
            for line in lines([finding]):
                click.echo(line)
    code = exit_code(findings)
    if as_json:
        print_json({"v": 1, "ok": code == 0, "findings": [one.to_json() for one in findings]})
    return code
