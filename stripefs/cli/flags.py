"""Flags made from the options of a program, and help pages that group them by what they set.

A flag hands its text on untouched; `stripefs.options` parses it, so a bad value gets the same words wherever it was
given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stripefs.config import STRIPEFS
from stripefs.options import Option, Options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["SettingsCommand", "config_flag", "given", "json_flag", "mountpoints", "settings_flags"]

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
