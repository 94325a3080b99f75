"""Command lines read without click, which takes as long to load as much of what a short command then does.

Only what is written plainly is read: flags that are known, in full, each with a value that it takes. To anything else,
be it a mistake or a question, the answer is None: click reads that line, and knows what to say. Where both read a line
they read the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stripefs.records import NamedTuple

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Any, Literal

__all__ = ["Flag", "read"]


class Flag(NamedTuple):
    """A flag of a command, for this module and for click.

    field: under which name its value is handed on. kind: `text`, of which the last counts; `texts`, all of them;
    `switch`, on when it is given; `either`, --NAME or --no-NAME. choices: the only texts that it takes.
    """

    name: str
    field: str
    help: str
    kind: Literal["text", "texts", "switch", "either"] = "text"
    metavar: str = ""
    default: str | bool | None = ""
    choices: tuple[str, ...] = ()

    @property
    def unset(self) -> Any:
        """Its value where it is not given."""
        return () if self.kind == "texts" else False if self.kind == "switch" else self.default


def read(
    arguments: Sequence[str], flags: Iterable[Flag], *, others: bool = False
) -> tuple[dict[str, Any], list[str]] | None:
    """The values of the flags that were given, by field, and the other words; None where that is for click.

    others: flags that are not known are words, as of a program that is run; but for those that ask for help.
    """
    known = {}
    for flag in flags:
        known[f"--{flag.name}"] = flag
        if flag.kind == "either":
            known[f"--no-{flag.name}"] = flag
    values: dict[str, Any] = {}
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            return values, [*words, *rest]
        if word == "-" or not word.startswith("-"):
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        found = known.get(name)
        if found is None:
            if not others or word in ("-h", "--help"):
                return None
            words.append(word)
            continue
        if found.kind in ("switch", "either"):
            if equals:
                return None
            values[found.field] = name == f"--{found.name}"
            continue
        text = value if equals else next(rest, None)
        if text is None or (found.choices and text not in found.choices):
            return None
        values[found.field] = (*values.get(found.field, ()), text) if found.kind == "texts" else text
    return values, words
