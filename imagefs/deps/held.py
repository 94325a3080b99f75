"""Holding an installer to a lock, and comparing what it did with that. Pure.

Both tools get a constraints file with the versions of the lock on their command line; a variable would also reach the
installations of build requirements. uv checks the digests in it. pip would then want digests of everything, so pip is
asked for its installation report instead, in which are the digests of what it has installed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from imagefs.deps.lock import Lock, LockedRequirement
from imagefs.deps.resolver import of_report

__all__ = ["Held"]


class Held(NamedTuple):
    """An installation that is held to a lock.

    setup, command: as in `Request`. tool: pip or uv. cached: whether the lock was resolved by an earlier start.
    """

    setup: Sequence[str]
    command: Sequence[str]
    tool: str
    lock: Lock
    cached: bool

    @property
    def constraints(self) -> str:
        """What the file of constraints holds."""
        return self.lock.constraints(hashed=self.tool == "uv")

    def words(self, constraints: str, report: str) -> list[str]:
        """The installer's command line. constraints: the path of that file. report: where pip's report is to go."""
        more = ["--constraint", constraints, *(["--report", report] if self.tool == "pip" else [])]
        words = list(self.command)
        end = words.index("--") if "--" in words else len(words)
        return [*words[:end], *more, *words[end:]]

    def broken(self, report: str | None) -> str:
        """Why what pip says it has installed is not the lock; "" where it is. report: None where there is none."""
        if self.tool != "pip":
            return ""
        try:
            found = Lock.of(of_report(json.loads(report or "")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "pip did not say what it has installed"
        known = {_without_build(one) for one in self.lock.requirements}
        strange = [one for one in found.requirements if _without_build(one) not in known]
        return f"{strange[0].name} {strange[0].version} is not what was resolved before" if strange else ""


def _without_build(one: LockedRequirement) -> LockedRequirement:
    """As pip knows it: of a directory of this host it has no digest."""
    return one._replace(digests=()) if one.kind in ("local", "editable") else one
