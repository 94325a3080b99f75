"""The commands of a program as plain values, read from its click group and its declared options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from imagefs.cli.main import PROGRAM as IMAGEFS_PROGRAM
from imagefs.config import IMAGEFS
from stripefs.cli.commands import group
from stripefs.cli.main import PROGRAM as STRIPEFS_PROGRAM
from stripefs.config import STRIPEFS
from stripefs.options import Option, Options

__all__ = ["REFERENCES", "CommandEntry", "FlagEntry", "Reference"]

_BRACKETED = re.compile(r"\s*\[(?P<default>[^\[\]]+)\]$")
"""The default at the end of a help text, as the commands write it."""


@dataclass(frozen=True)
class FlagEntry:
    """A flag of one command. `values` are the words that it accepts, empty where any text of its kind is; `setting` is
    the option behind it where it sets one of the program's settings."""

    names: str
    metavar: str
    values: tuple[str, ...]
    default: str
    help: str
    setting: Option | None


@dataclass(frozen=True)
class CommandEntry:
    """A command, or a group with its commands. `text` has the paragraphs of its help page, of which the first is the
    summary."""

    path: str
    usage: str
    text: tuple[str, ...]
    flags: tuple[FlagEntry, ...]
    commands: tuple[CommandEntry, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition(" ")[2]

    def walk(self) -> Iterator[CommandEntry]:
        """This command and all below it."""
        yield self
        for command in self.commands:
            yield from command.walk()


@dataclass(frozen=True)
class Reference:
    """A program: its group of commands, and the options that flags, variables and configuration files set."""

    name: str
    app: click.Group
    options: Options

    def root(self) -> CommandEntry:
        """Its commands, read anew."""
        return _read(self.app, self.name, None)


REFERENCES = (
    Reference("stripefs", group(STRIPEFS_PROGRAM), STRIPEFS),
    Reference("imagefs", group(IMAGEFS_PROGRAM), IMAGEFS),
)


def _read(command: click.Command, path: str, parent: click.Context | None) -> CommandEntry:
    settings: dict[str, Any] = dict(command.context_settings)
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, **settings)
    children: list[CommandEntry] = []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            children.append(_read(child, f"{path} {name}", context))
    return CommandEntry(
        path,
        " ".join([path, *command.collect_usage_pieces(context)]),
        _paragraphs(command.help) or _of_page(command.get_help(context)),
        tuple(_flag(each, context) for each in command.get_params(context) if isinstance(each, click.Option)),
        tuple(children),
    )


def _paragraphs(text: str | None) -> tuple[str, ...]:
    blocks = re.split(r"\n\s*\n", (text or "").strip())
    return tuple(" ".join(block.split()) for block in blocks if block)


def _of_page(page: str) -> tuple[str, ...]:
    """The paragraphs of a page that is written as a whole, between its usage and its commands."""
    return _paragraphs(page.partition("\n\n")[2].partition("\nCommands:")[0])


def _flag(parameter: click.Option, context: click.Context) -> FlagEntry:
    setting = getattr(parameter, "option", None)
    opts = parameter.opts
    if parameter is context.command.get_help_option(context):  # which click keeps as its first use made it
        opts = context.command.get_help_option_names(context)
    names = " / ".join(", ".join(group) for group in (opts, parameter.secondary_opts) if group)
    if isinstance(setting, Option):
        values = ("on", "off") if setting.is_switch else setting.choices
        return FlagEntry(names, setting.metavar, values, setting.default_in_words, setting.help, setting)
    takes_value = not (parameter.is_flag or parameter.count)
    values = tuple(map(str, parameter.type.choices)) if isinstance(parameter.type, click.Choice) else ()
    metavar = (parameter.metavar or ("" if values else parameter.make_metavar(context))) if takes_value else ""
    text = " ".join((parameter.help or "").split())
    told = _BRACKETED.search(text)
    default = told["default"] if told else ""
    if not told and takes_value and isinstance(parameter.default, str | int | float):
        default = str(parameter.default)
    return FlagEntry(names, metavar, values, default, _BRACKETED.sub("", text), None)
