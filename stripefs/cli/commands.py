"""The click side of a `Program`: its group of commands, and flags and help pages made from its options.

The group imports the module of one command alone and turns misuse into ConfigError. The command `completion`, which
prints click's own script, stands here for every program that lists it. A flag hands its text on untouched;
`stripefs.options` parses it, so a bad value gets the same words wherever it was given. Help pages group flags by what
they set.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

import stripefs
from stripefs.cli.output import guarded, wants_debug
from stripefs.config import STRIPEFS
from stripefs.errors import ConfigError
from stripefs.options import Option, Options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from stripefs.cli.program import Program

__all__ = ["SettingsCommand", "config_flag", "given", "group", "json_flag", "main", "mountpoints", "settings_flags"]

_F = TypeVar("_F", bound=Callable[..., Any])
_GIVEN = "stripefs.given"
_FOOTNOTE = (
    "Each of these may also be the variable {}_NAME or a key of a TOML file; a flag beats a variable, a variable "
    "beats a file. Sizes are written 8MiB or 1GB, times 250ms, 90s or 2m."
)


class _Flag(click.Option):
    """A flag of one `Option`, which keeps it and the title of its section for the grouped help page.

    `alone`: the command has it without the rest of its section.
    """

    def __init__(self, option: Option, title: str, *, alone: bool) -> None:
        switch = option.is_switch
        super().__init__(
            [option.flag],
            default=None,
            type=bool if switch else str,
            multiple=option.many,
            metavar=None if switch else option.metavar,
            help=option.help + (f"  [{option.default_in_words}]" if option.default_in_words else ""),
            expose_value=False,
            callback=self._keep,
            shell_complete=self._words if option.choices else None,
        )
        self.option = option
        self.title = title
        self.alone = alone

    def _keep(
        self, ctx: click.Context, _parameter: click.Parameter, value: str | bool | tuple[str, ...] | None
    ) -> None:
        if isinstance(value, tuple):
            value = ",".join(value) or None
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else value
            ctx.meta.setdefault(_GIVEN, {})[self.option.name] = (text, f"--{self.option.name}")

    def _words(self, _ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self.option.choices if word.startswith(incomplete)]


class SettingsCommand(click.Command):
    """A command whose page lists the flags of each section under a title of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}  # first on the page, the others as they come
        program = ""
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            title = parameter.title if isinstance(parameter, _Flag) else "Options"
            groups.setdefault(title, []).append(record)
            if isinstance(parameter, _Flag) and not parameter.alone:
                program = parameter.option.program
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if program:
            formatter.write_paragraph()
            formatter.write_text(_FOOTNOTE.format(program.upper()))


def settings_flags(
    *sections: str, also: Iterable[str] = (), without: Iterable[str] = (), options: Options = STRIPEFS
) -> Callable[[_F], _F]:
    """Add the flags of these sections of `options` to a command, `also` single ones, `without` those named there."""
    names, left_out = tuple(also), tuple(without)
    flags = [
        _Flag(option, options.titles[option.section], alone=option.section not in sections)
        for option in options.all
        if (option.section in sections or option.name in names) and option.name not in left_out
    ]

    def add(function: _F) -> _F:
        parameters: list[click.Parameter] = getattr(function, "__click_params__", [])
        # click collects parameters from the bottom up
        function.__click_params__ = [*reversed(flags), *parameters]  # type: ignore[attr-defined]  # how click's own decorators attach them
        return function

    return add


config_flag = click.option(
    "--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones."
)
"""Add --config to a command, which gets it as `config`."""


def json_flag(text: str = "Print one JSON object.") -> Callable[[_F], _F]:
    """Add --json to a command, which gets it as `as_json`; `text` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def mountpoints(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completion: where stripefs is mounted."""
    from click.shell_completion import CompletionItem

    from stripefs.fuse.control import find_mounts

    return [CompletionItem(m.mountpoint) for m in find_mounts() if m.mountpoint.startswith(incomplete)]


def given(ctx: click.Context) -> dict[str, tuple[str, str]]:
    """The values of the flags of this invocation, for `resolve` of the program's configuration."""
    return dict(ctx.meta.get(_GIVEN, {}))


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
