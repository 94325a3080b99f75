"""`imagefs snapshotter config`."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Literal

import click

from imagefs.snapshotter.containerd_config import ROOT, SOCKET, Wanted, containerd_config, parse_version
from stripefs.errors import ConfigError

__all__ = ["config"]

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Machines that Go, and so containerd, calls by other names than the kernel does."""


@click.command("config")
@click.option(
    "--containerd",
    "major",
    type=click.Choice(["auto", "1", "2"]),
    default="auto",
    help="For containerd 1.6 and 1.7, or for 2.x.  [what `containerd --version` says]",
)
@click.option("--socket", default=SOCKET, show_default=True, metavar="PATH", help="The snapshotter's socket.")
@click.option("--root", default=ROOT, show_default=True, metavar="DIR", help="The snapshotter's folder.")
@click.option(
    "--runtime-class", is_flag=True, help="Only for pods whose RuntimeClass has the handler imagefs (1.7 and later)."
)
@click.option(
    "--systemd-cgroup/--no-systemd-cgroup",
    default=None,
    help="With --runtime-class: cgroups by systemd, as kubelet has them.  [whether systemd runs here]",
)
def config(
    major: Literal["auto", "1", "2"], socket: str, root: str, runtime_class: bool, systemd_cgroup: bool | None
) -> None:
    """Print what goes into containerd's configuration, /etc/containerd/config.toml."""
    if systemd_cgroup is None:
        systemd_cgroup = os.path.isdir("/run/systemd/system")
    machine = platform.machine()
    wanted = Wanted(
        os.path.abspath(socket),
        os.path.abspath(root),
        f"linux/{_ARCHITECTURES.get(machine, machine)}",
        runtime_class,
        systemd_cgroup,
    )
    click.echo(containerd_config(_installed_major() if major == "auto" else int(major), wanted), nl=False)


def _installed_major() -> int:
    """Raises ConfigError where no containerd is installed."""
    hint = "say which: --containerd 1 or --containerd 2"
    try:
        printed = subprocess.run(["containerd", "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"containerd --version does not run: {error}", hint=hint) from error
    version = parse_version(printed)
    if version is None:
        raise ConfigError(f"containerd --version printed {printed.strip()!r}", hint=hint)
    return version[0]
