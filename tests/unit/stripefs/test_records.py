"""`stripefs.records.NamedTuple` against that of `typing`."""

from __future__ import annotations

import pickle
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

from stripefs import records


def made(base: Any, name: str) -> Any:
    """A record on this base, which pickle finds in this module by its name."""

    class Record(base):  # type: ignore[misc]
        """A place."""

        name: str
        size: int = 3
        tags: tuple[str, ...] = ()

        def __str__(self) -> str:
            return self.name

    Record.__name__ = Record.__qualname__ = name
    return Record


Ours, Theirs = made(records.NamedTuple, "Ours"), made(typing.NamedTuple, "Theirs")

USES: list[Callable[[Any], Any]] = [
    lambda kind: kind("a"),
    lambda kind: kind("a", 1, ("b",)),
    lambda kind: kind("a", tags=("b",)),
    lambda kind: kind(size=2, name="a"),
    lambda kind: kind(),
    lambda kind: kind("a", 1, (), 4),
    lambda kind: kind("a", name="b"),
    lambda kind: kind("a", colour="b"),
    lambda kind: kind(size=1),
    lambda kind: kind._make(["a", 1, ()]),
    lambda kind: str(kind("a")),
    lambda kind: repr(kind("a")).partition("(")[2],
    lambda kind: kind("a")._replace(size=7),
    lambda kind: kind("a")._replace(colour=7),
    lambda kind: kind("a")._asdict(),
    lambda kind: kind._fields,
    lambda kind: kind._field_defaults,
    lambda kind: kind.__doc__,
    lambda kind: kind.__match_args__,
    lambda kind: kind("a") == ("a", 3, ()),
    lambda kind: pickle.loads(pickle.dumps(kind("a", 5))),
    lambda kind: setattr(kind("a"), "name", "b"),
    lambda kind: setattr(kind("a"), "colour", "b"),
]


@pytest.mark.parametrize("use", USES, ids=range(len(USES)))
def test_a_class_behaves_as_that_of_typing(use: Callable[[Any], Any]) -> None:
    assert outcome(use, Ours) == outcome(use, Theirs)


def outcome(use: Callable[[Any], Any], kind: Any) -> Any:
    """The answer, or the type of the error."""
    try:
        return use(kind)
    except (TypeError, ValueError, AttributeError) as error:
        return type(error)


def test_typing_is_not_loaded_for_it() -> None:
    program = "import sys; sys.path.append('.'); import stripefs.records; print('typing' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
