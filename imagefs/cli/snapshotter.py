"""`imagefs snapshotter`."""

from __future__ import annotations

import click

from imagefs.cli.snapshotter_config import config

__all__ = ["command"]


@click.group("snapshotter")
def command() -> None:
    """Start containerd's containers from lazy images."""


command.add_command(config)
