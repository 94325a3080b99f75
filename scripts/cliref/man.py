"""Man pages: PROGRAM.1 with the settings that all commands share, PROGRAM-COMMAND.1 for each command, and the helper of
mount(8)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cliref.model import CommandEntry, FlagEntry, Reference
from stripefs.options import Options

__all__ = ["escaped", "helper", "pages"]


def pages(program: Reference, version: str) -> dict[str, str]:
    """The text of each page, by file name."""
    root = program.root()
    found = {f"{program.name}.1": _overview(program, root, version)}
    for command in root.commands:
        name = f"{program.name}-{command.name}"
        found[f"{name}.1"] = "".join(_family(program, command, _head(name, version)))
    return found


def _head(name: str, version: str, section: int = 1) -> str:
    return f'.TH {name.upper()} {section} "" "bootseer {version}" "bootseer"\n'


def _overview(program: Reference, root: CommandEntry, version: str) -> str:
    lines = [
        _head(program.name, version),
        f".SH NAME\n{program.name} \\- {escaped(root.text[0])}\n",
        f".SH SYNOPSIS\n.B {program.name}\n.I COMMAND\n[OPTIONS] [ARGUMENTS]\n",
        f".SH DESCRIPTION\n{escaped(' '.join(root.text))}\n.SH COMMANDS\n",
    ]
    lines += [f".TP\n.BR {program.name}\\-{each.name} (1)\n{escaped(each.text[0])}\n" for each in root.commands]
    lines.append(".SH OPTIONS\n")
    lines += [_flag(flag) for flag in root.flags]
    files = f"/etc/bootseer/{program.name}.toml", f"~/.config/bootseer/{program.name}.toml"
    lines.append(
        ".SH SETTINGS\nCommands take the settings that their pages name. A flag wins over the variable, the variable "
        f"over {escaped(files[1])}, that over {escaped(files[0])}, and the default comes last.\n"
    )
    for section, title in program.options.titles.items():
        lines.append(f".SS {escaped(title)}\n")
        for option in program.options.all:
            if option.section == section:
                flag = f"{option.flag} {option.metavar}".strip()
                values = ("on", "off") if option.is_switch else option.choices
                lines.append(_item(flag, _sentences(option.help, values, option.default_in_words)))
                lines.append(
                    f"Variable {escaped(option.variable)}, key {escaped(f'{option.section}.{option.name}')}.\n"
                )
    also = ",\n".join(f".BR {program.name}\\-{each.name} (1)" for each in root.commands)
    lines.append(f".SH SEE ALSO\n{also}\n")
    return "".join(lines)


HELPER = "mount.stripefs"

_HELPER_FLAGS = (
    ("-o OPTIONS", "Options with commas between them; see below. May be given again."),
    ("-s", "Ignore options that are unknown."),
    ("-f", "Check everything and mount nothing."),
    ("-n", "Accepted without effect: no mtab is written."),
    ("-v", "Print the source and the mountpoint once it is mounted."),
    ("-t TYPE", "Accepted without effect."),
    ("-V, --version", "Print the version and exit."),
    ("-h, --help", "Print the usage and exit."),
)
_HELPER_WORDS = (
    ("ro", "Mount read-only, which is the default."),
    ("writable", "Let files be written. rw alone has no effect, since mount(8) adds it to every mount without ro."),
    ("config=FILE", "Read this TOML file instead of the usual ones."),
    ("nonempty", "Mount on a directory that is not empty."),
    ("noexec, nosuid, nodev, noatime, nodiratime, relatime, strictatime, sync, dirsync",
     "Handed to the kernel, as are their opposites and context=, fscontext=, defcontext= and rootcontext=."),
    ("defaults, _netdev, nofail, auto, noauto, user, users, owner, group, comment=, x-", "Ignored."),
)  # fmt: skip
_HELPER_EXITS = (
    ("0", "mounted"),
    ("1", "a usage error: options, names, a configuration file"),
    ("2", "a system error"),
    ("4", "a bug of the program"),
    ("8", "interrupted"),
    ("32", "the mount failed"),
)


def helper(options: Options, version: str) -> str:
    """The text of mount.stripefs.8. Its flags and words are declared here, since mount(8) defines them; its settings
    are `options`."""
    lines = [
        _head(HELPER, version, 8),
        f".SH NAME\n{HELPER} \\- mount a source of stripefs for mount(8), fstab and systemd\n",
        f".SH SYNOPSIS\n.B {HELPER}\n.I SOURCE DIR\n[\\-sfnv] [\\-o OPTIONS] [\\-t TYPE]\n",
        ".SH DESCRIPTION\nmount(8) runs this helper for the type stripefs. It looks for helpers in /sbin only, so make "
        'a link there:\n.PP\n.RS\nln \\-s "$(command \\-v mount.stripefs)" /sbin/mount.stripefs\n.RE\n.PP\n',
        "A line of /etc/fstab:\n.PP\n.RS\n",
        escaped("hdfs://namenode:8020/checkpoints /mnt/checkpoints stripefs ro,_netdev,nofail,memory=4G 0 0"),
        "\n.RE\n.SH OPTIONS\n",
        *(_item(*each) for each in _HELPER_FLAGS),
        ".SH MOUNT OPTIONS\nA comma in a value is written as \\e, and a value in double quotes may hold commas. Other "
        "words than these are refused.\n",
        *(_item(*each) for each in _HELPER_WORDS),
        ".PP\nAll settings of\n.BR stripefs (1)\nare options too, with _ or \\- between words, and a switch is turned "
        "off by no before its name:\n",
        escaped(", ".join(each.name + ("" if each.is_switch else f"={each.metavar}") for each in options.all)),
        ".\n.SH EXIT STATUS\n",
        *(_item(*each) for each in _HELPER_EXITS),
        ".SH SEE ALSO\n.BR stripefs\\-mount (1),\n.BR stripefs (1),\n.BR mount (8),\n.BR fstab (5)\n",
    ]
    return "".join(lines)


def _family(program: Reference, command: CommandEntry, head: str) -> Iterator[str]:
    yield head
    yield f".SH NAME\n{program.name}\\-{command.name} \\- {escaped(command.text[0])}\n"
    yield ".SH SYNOPSIS\n"
    for number, each in enumerate(command.walk()):
        yield f"{'.br' + chr(10) if number else ''}{escaped(each.usage)}\n"
    yield f".SH DESCRIPTION\n{_text(command)}"
    yield from _flags(program, command, ".SH OPTIONS\n")
    for each in command.walk():
        if each is not command:
            yield f".SH {each.path.upper().partition(' ')[2]}\n{_text(each)}"
            yield from _flags(program, each, ".SS Options\n")
    yield f".SH SEE ALSO\n.BR {program.name} (1)\n"


def _text(command: CommandEntry) -> str:
    return "".join(f".PP\n{escaped(block)}\n" for block in command.text)


def _flags(program: Reference, command: CommandEntry, title: str) -> Iterator[str]:
    if command.flags:
        yield title
    yield from (_flag(flag) for flag in command.flags if flag.setting is None)
    shared = [flag.names for flag in command.flags if flag.setting is not None]
    if shared:
        yield f".PP\nSettings, which\n.BR {program.name} (1)\nexplains: {escaped(', '.join(shared))}.\n"


def _flag(flag: FlagEntry) -> str:
    return _item(f"{flag.names} {flag.metavar}".strip(), _sentences(flag.help, flag.values, flag.default))


def _item(term: str, text: str) -> str:
    return f".TP\n\\fB{escaped(term)}\\fR\n{escaped(text)}\n"


def _sentences(text: str, values: tuple[str, ...], default: str) -> str:
    known = f" Values: {', '.join(values)}." if values else ""
    return f"{text}{known}{f' Default: {default}.' if default else ''}".strip()


def escaped(text: str) -> str:
    """Plain text for roff: no character of it is a command or an escape."""
    plain = re.sub(r"`([^`]*)`", r"\1", text).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + plain if plain.startswith((".", "'")) else plain
