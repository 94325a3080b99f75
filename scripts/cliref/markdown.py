"""The Markdown page of a program: each command with its own flags, then the settings that commands share."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cliref.model import CommandEntry, FlagEntry, Reference

__all__ = ["page"]

_HEAD = """\
<!-- Written by ./scripts/docs from the click commands. -->

# Commands of {name}

{text}

Each command below lists its own flags; `-h` and `--help`, which every command has, are left out. Flags of settings are
listed by name, and the tables under [Settings](#settings) have their values, defaults, variables and keys.
[The command line](../cli.md) has the behaviour that scripts may rely on, and [configuration](../config.md) the order of
precedence of flags, variables and files.

| command | purpose |
|---|---|
"""

_SETTINGS = """\
## Settings

A flag wins over the variable, the variable over the configuration file. The key of a file is `TABLE.NAME`.
"""


def page(program: Reference) -> str:
    """The text of docs/reference/NAME.md."""
    root = program.root()
    commands = [command for command in root.walk() if command is not root]
    lines = [_HEAD.format(name=program.name, text=" ".join(_escaped(block) for block in root.text))]
    lines += [f"| [`{each.path}`](#{_anchor(each.path)}) | {_escaped(_first(each))} |\n" for each in commands]
    for command in commands:
        lines += ["\n", *_command(program, command)]
    lines += ["\n", _SETTINGS, *_settings(program)]
    return "".join(lines)


def _first(command: CommandEntry) -> str:
    return command.text[0] if command.text else ""


def _command(program: Reference, command: CommandEntry) -> Iterator[str]:
    yield f"{'##' if command.path.count(' ') == 1 else '###'} `{command.path}`\n\n    {command.usage}\n"
    for block in command.text:
        yield f"\n{_escaped(block)}\n"
    own = [flag for flag in command.flags if flag.setting is None and "--help" not in flag.names]
    if own:
        yield "\n| flag | values | default | meaning |\n|---|---|---|---|\n"
        for flag in own:
            yield f"| {_code(_spelled(flag))} | {_values(flag)} | {_escaped(flag.default)} | {_escaped(flag.help)} |\n"
    for section, title in program.options.titles.items():
        names = [flag.names for flag in command.flags if flag.setting and flag.setting.section == section]
        if names:
            anchor = _anchor(f"{program.name}: {title}")
            yield f"\n[{title}](#{anchor}): {', '.join(_code(name) for name in names)}\n"


def _settings(program: Reference) -> Iterator[str]:
    for section, title in program.options.titles.items():
        yield f"\n### {program.name}: {title}\n\n"
        yield "| flag | variable | file | values | default | meaning |\n|---|---|---|---|---|---|\n"
        for option in program.options.all:
            if option.section != section:
                continue
            switch = f"--{option.name} / --{option.opposite or f'no-{option.name}'}"
            flag = switch if option.is_switch else f"--{option.name} {option.metavar}"
            values = "on, off" if option.is_switch else ", ".join(map(_code, option.choices))
            yield (
                f"| {_code(flag)} | {_code(option.variable)} | {_code(f'{option.section}.{option.name}')} | {values} "
                f"| {_escaped(option.default_in_words or 'none')} | {_escaped(option.help)} |\n"
            )


def _spelled(flag: FlagEntry) -> str:
    return f"{flag.names} {flag.metavar}".strip()


def _values(flag: FlagEntry) -> str:
    return ", ".join(map(_code, flag.values))


def _anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def _escaped(text: str) -> str:
    """Plain text as Markdown; what stands between backticks is code already."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part.replace("|", r"\|") if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    return re.sub(r"([\\*_\[\]|])", r"\\\1", text).replace("<", "&lt;")
