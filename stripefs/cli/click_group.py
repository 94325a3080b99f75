"""The click group behind a `Program`: imports the module of one command alone and turns misuse into ConfigError.

The command `completion`, which prints click's own script, stands here for every program that lists it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

import stripefs
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.output import guarded, wants_debug
from stripefs.cli.program import Program
from stripefs.errors import ConfigError

__all__ = ["group", "main"]


class _Lazy(click.Group):
    """Commands by the table of `program`; the page of the group itself comes from there as well."""

    def __init__(self, program: Program) -> None:
        super().__init__(
            name=program.name, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False
        )
        self._program = program

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._program.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._program.commands:
            return None
        if cmd_name == "completion":
            return _completion(self._program.name, self)
        module, name = self._program.home(cmd_name)
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self._program.commands and not ctx.resilient_parsing:
            raise ConfigError(f"{word!r} is not a command", hint=self._program.hint(word))
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        return self._program.page().rstrip()


def group(program: Program, summary: str = "") -> click.Group:
    """The group of `program`. summary: says in the list of commands of another group what it is for."""
    found = _Lazy(program)
    found.help = summary or None
    return click.version_option(stripefs.__version__, message="%(prog)s %(version)s")(found)


def main(program: Program, arguments: Sequence[str]) -> int:
    """Run `program` with these arguments; the exit code, after any error has been printed to standard error."""

    def body() -> int:
        try:
            answer = group(program).main(list(arguments), prog_name=program.name, standalone_mode=False)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else program.name
            raise ConfigError(error.format_message().rstrip("."), hint=f"see {where} --help") from error
        except click.ClickException as error:
            raise ConfigError(error.format_message()) from error
        except click.Abort as error:
            raise KeyboardInterrupt from error
        return answer if isinstance(answer, int) else 0

    return guarded(body, debug=wants_debug(arguments, program.name), program=program.name)


def _completion(name: str, app: click.Group) -> click.Command:
    """The command `completion` of the program `name`, whose group is `app`."""

    @click.command(
        "completion",
        cls=SettingsCommand,
        help=f"Print the completion script for SHELL; a shell that evaluates it completes {name} commands.",
        epilog=f'For bash: eval "$({name} completion bash)"',
    )
    @click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
    def command(shell: str) -> None:
        from click.shell_completion import get_completion_class

        found = get_completion_class(shell)
        assert found is not None  # click brings all three
        click.echo(found(app, {}, name, f"_{name.upper()}_COMPLETE").source())

    return command
