"""What the checks answer. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["KINDS", "Finding", "Kind"]

Kind = Literal[
    "status",
    "survivor",
    "outside",
    "record",
    "orphan",
    "conflict",
    "secret",
    "editable",
    "privileged",
    "changed",
    "unmet",
    "bytecode",
]

KINDS: dict[Kind, bool] = {
    "status": True,  # the installer failed
    "survivor": True,  # something of it still ran
    "outside": True,  # it wrote where nothing is captured
    "record": True,  # a file is not what the distribution it belongs to says
    "orphan": True,  # a file belongs to no distribution
    "conflict": True,  # distributions do not fit one another
    "secret": True,  # a file that others must not read
    "editable": True,  # a source that may change
    "privileged": True,  # a program that gives privileges, or a device
    "changed": True,  # a file changed while it was packed
    "unmet": False,  # distributions do not fit one another, and need not
    "bytecode": False,  # a source that is no valid program
}
"""Every kind, by importance, and whether it stands against publishing."""


class Finding(NamedTuple):
    """subject: the path or name it is about, without what is secret. what: a few words on it, "" where the kind says
    all."""

    kind: Kind
    subject: str
    what: str = ""
