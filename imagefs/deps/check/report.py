"""The report of the checks: findings, and the verdict whether an installation is published. Pure.

Doubt never publishes, and never fails the job: what was installed stays in use where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

__all__ = ["KINDS", "Finding", "FindingKind", "Verdict", "judge", "outcome_findings"]

FindingKind = Literal[
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
KINDS: dict[FindingKind, bool] = {
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

    kind: FindingKind
    subject: str
    what: str = ""


_SHOWN = 3
"""Findings of one kind that are told one by one."""

_WORDS: dict[FindingKind, tuple[str, str]] = {
    "status": ("the installer failed", ""),
    "survivor": ("processes still ran when the installer had ended", "start them from the job's own command"),
    "outside": ("it wrote outside the targets", "--ignore-outside PATTERN publishes without them"),
    "record": ("files are not what their packages say", ""),
    "orphan": ("files belong to no package", "as an install that was interrupted leaves them; --allow-file PATTERN"),
    "conflict": ("packages do not fit one another", "--allow-conflicts publishes them"),
    "secret": ("secrets would be published", "keep them out of the target"),
    "editable": ("editable installs may change", "--bytecode checked publishes them"),
    "privileged": ("files give privileges", "--allow-setuid publishes them"),
    "changed": ("files changed while they were packed", ""),
    "unmet": ("packages do not fit one another", ""),
    "bytecode": ("sources that do not compile have no bytecode", ""),
}


class Verdict(NamedTuple):
    """lines: one for each kind of finding, those that stand against publishing first."""

    publish: bool
    lines: tuple[str, ...]


def judge(findings: Iterable[Finding]) -> Verdict:
    """Tells whether nothing speaks against publishing."""
    by_kind: dict[FindingKind, list[Finding]] = {kind: [] for kind in KINDS}
    for finding in findings:
        by_kind[finding.kind].append(finding)
    present = [kind for kind, found in by_kind.items() if found]
    against = [kind for kind in present if KINDS[kind]]
    lines = [_line(kind, by_kind[kind]) for kind in (*against, *(kind for kind in present if not KINDS[kind]))]
    return Verdict(not against, tuple(lines))


def outcome_findings(status: int, survivors: Iterable[tuple[int, str]]) -> list[Finding]:
    """Of an installer: its exit status, and pid and command line of what it left running."""
    found = [Finding("status", f"exit status {status}")] if status else []
    return [*found, *(Finding("survivor", f"{pid} ({command})" if command else str(pid)) for pid, command in survivors)]


def _line(kind: FindingKind, findings: list[Finding]) -> str:
    title, hint = _WORDS[kind]
    told = [f"{one.subject}: {one.what}" if one.what else one.subject for one in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        told.append(f"and {len(findings) - _SHOWN} more")
    return f"{title}: {', '.join(told)}" + (f" ({hint})" if hint else "")
