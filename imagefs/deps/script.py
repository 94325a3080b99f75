"""What a shell script shows of what it installs, read line by line and not run. Pure.

This finds what is written there plainly: installers with their arguments, addresses, and commands that bring what is
newest. What a script puts together from variables, or has other programs do, nobody can read; docs/deps.md says so.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from imagefs.deps.command import Call, calls
from imagefs.deps.urls import names_place

__all__ = ["Line", "is_shell", "lines_of", "why_open"]

_NEWEST = {
    **dict.fromkeys(("apt", "apt-get", "dnf", "yum", "zypper"), ("install",)),
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("create", "install", "update")),
    **dict.fromkeys(("npm", "pnpm", "yarn"), ("add", "i", "install", "update")),
    "apk": ("add",),
    "cargo": ("install",),
    "gem": ("install",),
    "git": ("clone", "fetch", "pull", "submodule"),
}
"""Commands, and the words with which they bring what is newest somewhere."""

_MOVING = ("cd", "popd", "pushd")

_SHELLS = ("ash", "bash", "dash", "ksh", "sh", "zsh")
_REDIRECTION = re.compile(r"&?[<>]+[&|]?")  # with a descriptor before it, and a file or descriptor behind it
_BREAKS = ("&", "&&", "(", ")", ";", ";;", "|", "||", "|&", "{", "}")


class Line(NamedTuple):
    """A line that installs something. call: the installer that it runs, None where it is open for another reason."""

    number: int
    text: str
    call: Call | None
    why: str


def is_shell(first: str, program: str) -> bool:
    """Whether a file whose first line is `first`, run by `program` or by itself (""), is a shell script."""
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    names = [word.rpartition("/")[2] for word in (program, *words[:2])]
    return any(name in _SHELLS for name in names)


def lines_of(text: str) -> Iterator[Line]:
    """The lines that install something, in order; lines that go on behind a backslash are one."""
    number, begun, moved = 1, "", False
    for count, line in enumerate(text.splitlines(), 1):
        if not begun:
            number = count
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            begun += line[:-1] + " "
            continue
        moved = yield from _line(number, begun + line, moved)
        begun = ""
    yield from _line(number, begun, moved)


def why_open(words: Sequence[str]) -> str:
    """Why what a command that runs no installer brings may be another thing tomorrow; "" where that does not show."""
    if any(names_place(word) for word in words):
        return "what is there may change; bring it as a file, and declare that with --input"
    return "it brings whatever is newest" if _is_newest(words) else ""


def _line(number: int, text: str, moved: bool) -> Generator[Line, None, bool]:
    """moved: whether another directory was gone to before. Answers whether one was with this line."""
    if text.lstrip().startswith("#"):
        return moved
    for words in _commands(text):
        moved = moved or any(word in _MOVING for word in words)
        shown = shlex.join(words)
        call = next(calls(words), None)
        if call is not None:
            yield Line(number, shown, call._replace(moved=moved or call.moved), "")
        elif why := why_open(words):
            yield Line(number, shown, None, why)
    return moved


def _commands(text: str) -> list[list[str]]:
    """The commands of a line as words. A line that only makes sense with others is taken apart at blanks."""
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # a quotation that ends on another line
        words = text.split()
    found: list[list[str]] = [[]]
    rest = iter(words)
    for word in rest:
        if word in _BREAKS:
            found.append([])
        elif _REDIRECTION.fullmatch(word):
            next(rest, "")
            if found[-1] and found[-1][-1].isdecimal():
                found[-1].pop()
        else:
            found[-1].append(word)
    return [command for command in found if command]


def _is_newest(words: Sequence[str]) -> bool:
    names = [word.rpartition("/")[2] for word in words]
    return any(verb in names[place + 1 :] for place, name in enumerate(names) for verb in _NEWEST.get(name, ()))
