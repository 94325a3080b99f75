"""The lines of requirements files, joined and split by pip's own parser. Pure.

A line that the parser would read for minutes is told instead.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pip_requirements_parser as pip

__all__ = ["LONGEST", "RequirementLine", "line_parser", "lines_of"]

LONGEST = 65_536
"""Characters of a line with all that continues it: 800 hashes. Releases have some hundreds of files at most."""

_BLANK = re.compile(r"\s{1000}")
"""More than people write in one place. The parser looks for comments in a time that grows with the square of it."""


class RequirementLine(NamedTuple):
    """number: of its first line in the file. why: it is not to be read, "" for nothing."""

    number: int
    text: str
    why: str


def lines_of(data: bytes) -> Iterator[RequirementLine]:
    """Those that say something. Raises ValueError for what is no text."""
    for number, text in pip.join_lines(enumerate(pip.auto_decode(data).splitlines(), start=1)):
        if text.lstrip().startswith("#"):
            continue
        if len(text) > LONGEST:
            yield RequirementLine(number, text, f"it is longer than {LONGEST} characters; break it up")
        elif _BLANK.search(text):
            yield RequirementLine(number, text, "it has a thousand blanks in a row; take them out")
        else:
            for found in pip.split_comments([(number, text)]):
                if not isinstance(found, pip.CommentLine):
                    yield RequirementLine(number, found[1], "")


def line_parser() -> Callable[[str], tuple[str, Any, Sequence[str]]]:
    """A parser of lines as `pip.get_line_parser` makes it, which makes all of pip's options anew for each."""
    parser = pip.build_parser()
    defaults = parser.get_default_values()

    def parse(line: str) -> tuple[str, Any, Sequence[str]]:
        arguments, words = pip.break_args_options(line)
        options, rest = parser.parse_args(shlex.split(words), copy.deepcopy(defaults))  # lists among them are added to
        return arguments, options, rest

    return parse
