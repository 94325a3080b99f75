"""`stripefs completion SHELL`: click's own completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from stripefs.cli.flags import SettingsCommand

__all__ = ["command"]


@click.command("completion", cls=SettingsCommand, epilog='For bash: eval "$(stripefs completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL; a shell that evaluates it completes stripefs commands."""
    from stripefs.cli.app import app

    completion = get_completion_class(shell)
    assert completion is not None  # click brings all three
    click.echo(completion(app, {}, "stripefs", "_STRIPEFS_COMPLETE").source())
