"""`imagefs doctor`: what this host can do for imagefs, what it lacks, and what that costs.

A check has a result: a state, what that costs and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

__all__ = ["CheckResult", "CheckState", "exit_code", "lines"]


CheckState = Literal["ok", "warn", "fail"]
"""ok: as it should be. warn: it works, at the cost that is named. fail: something that was asked for does not work."""


class CheckResult(NamedTuple):
    """One line of the report.

    check: AREA.NAME, fixed, for scripts. found: what is so, for people. cost: what the missing thing costs. remedy:
    what to do about it. Both are "" where all is well.
    """

    check: str
    state: CheckState
    found: str
    cost: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def exit_code(findings: Iterable[CheckResult]) -> int:
    """1 where a check failed, else 0."""
    return int(any(one.state == "fail" for one in findings))


def lines(findings: Iterable[CheckResult]) -> list[str]:
    """The report for people: a line for each finding, and below it what it costs and what to do."""
    told = []
    for one in findings:
        told.append(f"{one.state:4}  {one.check}: {one.found}")
        told.extend(f"      {text}" for text in (one.cost, one.remedy) if text)
    return told
