"""Sentences of docstrings and comments, and those among them that begin with a clause in place of a subject."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

__all__ = ["headless", "sentences", "texts"]

_HEADLESS = re.compile(
    r"(?:[Ww]hat(?:ever)?|[Ww]ho(?:ever|m|se)?|[Ww]hether|[Hh]ow|[Ww]hy|[Nn]obody|Which"
    r"|(?:About|At|By|For|From|In|Of|On|To|Under|With) (?:what|which|who|whom|whose))\b(?!:)"
)
_ENDS = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z])|\n\s*\n|\n\s*- ")
_BEGINS = frozenset((tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING))
_SILENT = frozenset((tokenize.NL, tokenize.COMMENT))


def headless(sentence: str) -> bool:
    """True for a sentence, no question, that begins as `What is here …` or `Under which name …` does.

    A comment may begin with `which` in small letters: the code before it is the noun.
    """
    return _HEADLESS.match(sentence) is not None and not sentence.endswith("?")


def sentences(text: str) -> Iterator[str]:
    """Sentences of a text, each on one line. A list's element begins one."""
    for found in _ENDS.split(text):
        if line := " ".join(found.split()).removeprefix("- "):
            yield line


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and comment of a Python file, and of each comment of another file.

    Lines of comments that stand below each other are one text.
    """
    block: list[str] = []
    begun = last = 0
    for line, text, alone in _python(path) if path.suffix == ".py" else _lines(path):
        if alone and block and line == last + 1:
            block.append(text)
        else:
            if block:
                yield begun, "\n".join(block)
            block, begun = [text], line
            if alone is None:
                yield line, text
                block = []
        last = line
    if block:
        yield begun, "\n".join(block)


def _python(path: Path) -> Iterator[tuple[int, str, bool | None]]:
    """(line, text, whether a comment has the line alone), None in place of the last for docstrings."""
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            yield token.start[0], token.string.lstrip("#!:").strip(), alone
        elif token.type == tokenize.STRING and before in _BEGINS:
            yield token.start[0], token.string.lstrip("rR").strip("\"'"), None
        if token.type not in _SILENT:
            before = token.type


def _lines(path: Path) -> Iterator[tuple[int, str, bool | None]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code, mark, text = line.partition("# ")
        if mark:
            yield number, text.strip(), not code.strip()
