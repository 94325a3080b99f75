"""Findings about the kernel: by what was tried, or by its version."""

from __future__ import annotations

import pytest

from imagefs.doctor.host import TRIALS, judge_kernel, release

GOOD = dict.fromkeys(TRIALS, "ok")


def states(version: tuple[int, int], tried: dict[str, str]) -> dict[str, str]:
    return {one.check.removeprefix("kernel."): one.state for one in judge_kernel(version, tried)}


@pytest.mark.parametrize(
    ("text", "version"),
    [("6.18.44-fc-v669", (6, 18)), ("6.1.0-31-amd64", (6, 1)), ("5.10", (5, 10)), ("unknown", (0, 0))],
)
def test_releases(text: str, version: tuple[int, int]) -> None:
    assert release(text) == version


def test_a_kernel_that_can_do_all_has_no_findings_against_it() -> None:
    assert set(states((6, 18), GOOD).values()) == {"ok"}


def test_what_was_tried_counts_more_than_the_version() -> None:
    assert states((6, 18), {**GOOD, "erofs-file": "Invalid argument"}) == {
        "erofs-file": "warn",
        "erofs-loop": "ok",
        "overlay": "ok",
        "fuse": "ok",
        "fuse-resend": "ok",
    }
    assert states((5, 4), GOOD) == states((6, 18), GOOD)


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ((6, 12), {}),
        ((6, 9), {"erofs-file": "warn"}),
        ((6, 1), {"erofs-file": "warn", "fuse-resend": "warn"}),
        ((5, 10), {"erofs-file": "warn", "erofs-loop": "fail", "overlay": "fail", "fuse-resend": "warn"}),
    ],
)
def test_where_nothing_could_be_tried_the_version_tells(version: tuple[int, int], missing: dict[str, str]) -> None:
    assert {name: state for name, state in states(version, {}).items() if state != "ok"} == missing


def test_every_lack_has_a_cost_and_something_to_do_about_it() -> None:
    findings = judge_kernel((6, 18), dict.fromkeys(TRIALS, "Function not implemented"))
    assert [one.check for one in findings if not (one.cost and one.remedy)] == []
    assert all("Function not implemented" in one.found for one in findings)
    assert len(findings) == len(TRIALS)
