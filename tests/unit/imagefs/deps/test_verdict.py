"""The verdict on publication, and its messages."""

from __future__ import annotations

import pytest

from imagefs.deps.check.rules import KINDS, Finding, FindingKind, judge, outcome_findings


def test_nothing_found_is_published() -> None:
    assert judge([]) == (True, ())
    assert judge(outcome_findings(0, [])).publish


@pytest.mark.parametrize("kind", KINDS)
def test_any_doubt_stands_against_it(kind: FindingKind) -> None:
    verdict = judge([Finding(kind, "the/path", "the reason")])
    assert verdict.publish is (kind in ("unmet", "bytecode"))
    assert "the/path: the reason" in verdict.lines[0]


def test_one_line_for_each_kind_the_most_important_first() -> None:
    found = [
        Finding("bytecode", "template.py"),
        Finding("secret", ".netrc"),
        Finding("record", "a"),
        Finding("record", "b"),
    ]
    verdict = judge(found)
    assert not verdict.publish
    assert [line.split(":")[0] for line in verdict.lines] == [
        "files are not what their packages say",
        "secrets would be published",
        "sources that do not compile have no bytecode",
    ]
    assert "a, b" in verdict.lines[0]


def test_of_many_some_are_told() -> None:
    verdict = judge(Finding("orphan", str(number)) for number in range(100))
    assert "0, 1, 2, and 97 more (" in verdict.lines[0]


def test_what_an_installer_left_is_named() -> None:
    verdict = judge(outcome_findings(3, [(77, "redis-server *:6379"), (78, "")]))
    assert verdict.lines[0] == "the installer failed: exit status 3"
    assert "77 (redis-server *:6379), 78" in verdict.lines[1]
