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

from imagefs.snapshotter.metastore import InvalidArgument

__all__ = ["Fields", "compile_filters"]

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_FIELD = re.compile(rf"{_QUOTED}|[A-Za-z0-9_]+")
_PATH = rf"(?:{_FIELD.pattern})(?:\.(?:{_FIELD.pattern}))*"
_SELECTOR = re.compile(rf'({_PATH})(?:(==|!=|~=)({_QUOTED}|[^\s,"][^\s,]*))?(?:,(?!$)|$)')
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
    """The selectors of a filter; one without any matches all."""
    selectors, at = [], 0
    while at < len(text):
        found = _SELECTOR.match(text, at)
        if found is None:
            raise InvalidArgument(f"the filter {text!r:.200} is none: a selector is expected at character {at + 1}")
        path = tuple(map(_unquoted, _FIELD.findall(found[1])))
        selectors.append(_Selector(path, _matcher(found[2], _unquoted(found[3] or ""))))
        at = found.end()
    return selectors


def _matcher(operator: str | None, wanted: str) -> Callable[[str | None], bool]:
    if operator is None:
        return lambda found: found is not None
    if operator == "==":
        return lambda found: found == wanted
    if operator == "!=":
        return lambda found: (found or "") != wanted
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise InvalidArgument(f"the regular expression {wanted!r:.200} of a filter is none: {error}") from error
    return lambda found: pattern.search(found or "") is not None


def _unquoted(text: str) -> str:
    """A field or value without its quotes, if it has any."""

    def plain(found: re.Match[str]) -> str:
        code = found[1]
        if code in _PLAIN_ESCAPES:
            return _PLAIN_ESCAPES[code]
        if code[0] in "xuU" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code.isdigit() and len(code) == 3:
            return chr(int(code, 8))
        raise InvalidArgument(f"the filter has {text!r:.200} in it, of which \\{code} is no escape")

    return _ESCAPE.sub(plain, text[1:-1]) if text.startswith('"') else text
