r"""containerd's filter language, by which clients choose the snapshots of a listing.

    selectors := selector ("," selector)*
    selector  := fieldpath [operator value]          without an operator: the field is there
    fieldpath := field ("." field)*                  name, parent, kind, labels.KEY
    field     := quoted | [A-Za-z0-9_]+
    operator  := "==" | "!=" | "~="                  equal, other, matches a regular expression somewhere
    value     := quoted | [^\s,"][^\s,]*
    quoted    := "…" with escapes

All selectors of one filter must match, and one filter of several is enough. A label's key that holds dots is quoted
or not: the fields behind `labels` are joined again. A label that is not there is like an empty one to != and ~=.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from imagefs.snapshotter.errors import InvalidArgument

__all__ = ["Fields", "compile_filters"]

_TOKEN = re.compile(
    r'(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<operator>==|!=|~=)|(?P<separator>[.,])|(?P<field>[A-Za-z0-9_]+)'
)
_VALUE = re.compile(r'(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<plain>[^\s,"][^\s,]*)')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"'}


class Fields(NamedTuple):
    """The fields of a snapshot that filters can name."""

    name: str
    parent: str
    kind: str
    labels: Mapping[str, str]

    def find(self, path: Sequence[str]) -> str | None:
        """The value of a field; None where the snapshot has none of that path."""
        head, rest = path[0], path[1:]
        if head == "labels" and rest:
            return self.labels.get(".".join(rest))
        if rest or head not in ("name", "parent", "kind"):
            return None
        return str(getattr(self, head))


class _Selector(NamedTuple):
    path: tuple[str, ...]
    matches: Callable[[str | None], bool]


def compile_filters(filters: Sequence[str]) -> Callable[[Fields], bool]:
    """A function that tells whether a snapshot is of a listing with these filters.

    Raises InvalidArgument for one that is no filter.
    """
    alternatives = [_parse(text) for text in filters]

    def matches(fields: Fields) -> bool:
        return any(all(one.matches(fields.find(one.path)) for one in selectors) for selectors in alternatives)

    return matches if alternatives else lambda _fields: True


def _parse(text: str) -> list[_Selector]:
    if not text:
        return []  # matches all
    selectors, at = [], 0
    while True:
        selector, at = _selector(text, at)
        selectors.append(selector)
        if at == len(text):
            return selectors
        if text[at] != ",":
            raise _error(text, at, "a comma")
        at += 1


def _selector(text: str, at: int) -> tuple[_Selector, int]:
    path: list[str] = []
    while True:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup not in ("field", "quoted"):
            raise _error(text, at, "a field")
        path.append(_unquoted(text, at, found[0]) if found.lastgroup == "quoted" else found[0])
        at = found.end()
        if text[at : at + 1] != ".":
            break
        at += 1
    if at == len(text) or text[at] == ",":
        return _Selector(tuple(path), lambda found: found is not None), at
    operator = _TOKEN.match(text, at)
    if operator is None or operator.lastgroup != "operator":
        raise _error(text, at, "==, != or ~=")
    value = _VALUE.match(text, operator.end())
    if value is None:
        raise _error(text, operator.end(), "a value")
    wanted = _unquoted(text, operator.end(), value[0]) if value.lastgroup == "quoted" else value[0]
    return _Selector(tuple(path), _matcher(text, at, operator[0], wanted)), value.end()


def _matcher(text: str, at: int, operator: str, wanted: str) -> Callable[[str | None], bool]:
    if operator == "==":
        return lambda found: found == wanted
    if operator == "!=":
        return lambda found: (found or "") != wanted
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise _error(text, at, f"a regular expression ({error})") from error
    return lambda found: pattern.search(found or "") is not None


def _unquoted(text: str, at: int, quoted: str) -> str:
    def plain(found: re.Match[str]) -> str:
        code = found[1]
        if code in _PLAIN_ESCAPES:
            return _PLAIN_ESCAPES[code]
        if code[0] in "xuU" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code.isdigit() and len(code) == 3:
            return chr(int(code, 8))
        raise _error(text, at, "a known escape")

    return _ESCAPE.sub(plain, quoted[1:-1])


def _error(text: str, at: int, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"the filter {text!r:.200} is none: {wanted} is expected at character {at + 1}")
