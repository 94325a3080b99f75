"""`stripefs completion SHELL`: click's own completion script."""

from __future__ import annotations

import importlib

import click
from click.shell_completion import get_completion_class

from stripefs.cli.flags import SettingsCommand
from stripefs.cli.main import PROGRAM
from stripefs.cli.program import Program

__all__ = ["command", "completion"]


def completion(program: Program) -> click.Command:
    """The command `PROGRAM completion`."""
    name = program.name

    @click.command(
        "completion",
        cls=SettingsCommand,
        help=f"Print the completion script for SHELL; a shell that evaluates it completes {name} commands.",
        epilog=f'For bash: eval "$({name} completion bash)"',
    )
    @click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
    def command(shell: str) -> None:
        app = importlib.import_module(f"{program.package}.app").app
        found = get_completion_class(shell)
        assert found is not None  # click brings all three
        click.echo(found(app, {}, name, f"_{name.upper()}_COMPLETE").source())

    return command


command = completion(PROGRAM)
