"""The click group behind `stripefs`: imports the module of one command alone and turns misuse into ConfigError."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence

import click

import stripefs
from stripefs.cli.border import guarded, wants_debug
from stripefs.cli.main import COMMANDS, page
from stripefs.config import nearest
from stripefs.errors import ConfigError

__all__ = ["app", "main"]


class _Lazy(click.Group):
    """Commands by the table in `stripefs.cli.main`; the page of the group itself comes from there as well."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"stripefs.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in COMMANDS and not ctx.resilient_parsing:
            is_source = "://" in word or os.path.isdir(word)
            hint = f"did you mean stripefs mount {word} …?" if is_source else nearest(word, COMMANDS)
            raise ConfigError(f"{word!r} is not a command", hint=hint)
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        return page().rstrip()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(stripefs.__version__, message="%(prog)s %(version)s")
def app() -> None:
    pass


def main(arguments: Sequence[str]) -> int:
    """Run `stripefs` with these arguments; the exit code, after any error has been told on standard error."""

    def body() -> int:
        try:
            answer = app.main(list(arguments), prog_name="stripefs", standalone_mode=False)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "stripefs"
            raise ConfigError(error.format_message().rstrip("."), hint=f"see {where} --help") from error
        except click.ClickException as error:
            raise ConfigError(error.format_message()) from error
        except click.Abort as error:
            raise KeyboardInterrupt from error
        return answer if isinstance(answer, int) else 0

    return guarded(body, debug=wants_debug(arguments))
