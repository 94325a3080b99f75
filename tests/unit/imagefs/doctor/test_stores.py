"""Findings about stores, and the command that prints all findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefs.cli import services
from imagefs.cli.main import PROGRAM
from imagefs.doctor import CheckResult, stores
from imagefs.doctor.stores import skew, store_findings
from stripefs.settings import StoreSettings
from tests.contract.commands import forget_settings, said


def states(url: str, *, write: bool = True) -> dict[str, str]:
    return {one.check: one.state for one in store_findings(StoreSettings(url=url), write=write)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "tags").mkdir(parents=True)
    (folder / "tags/train").write_text("digest")
    return folder


def test_a_store_that_works_and_one_that_is_slow_to_list(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(str(store)) == dict.fromkeys(("store.list", "store.read", "store.write", "store.clock"), "ok")
    assert [path.name for path in store.rglob("*")] == ["tags", "train"]  # the probe's files are gone
    monkeypatch.setattr(stores, "_SLOW", -1.0)
    assert states(str(store), write=False) == {"store.list": "warn", "store.read": "ok"}, "nothing is written unasked"


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert states(str(tmp_path / "none")) == {"store.reach": "fail"}
    assert states("gopher://host/x") == {"store.reach": "fail"}


@pytest.mark.parametrize(
    ("parameters", "check", "state"),
    [
        ("rate=1&on=scandir", "store.list", "fail"),
        ("rate=1&on=read", "store.read", "fail"),
        ("rate=1&on=put", "store.write", "warn"),
    ],
)
def test_each_right_is_examined_by_itself(store: Path, parameters: str, check: str, state: str) -> None:
    assert states(f"faulty+file://{store}?{parameters}")[check] == state


@pytest.mark.parametrize(
    ("ahead", "state"), [(0.0, "ok"), (-5.5, "ok"), (20.0, "warn"), (-20.0, "warn"), (900.0, "fail"), (-900.0, "fail")]
)
def test_clocks_that_differ(ahead: float, state: str) -> None:
    assert skew("store", ahead, 0.1).state == state
    assert skew("store", ahead, abs(ahead)).state == "ok", "a slow store took that time"


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CheckResult]:
    """The findings that the command gets, in place of those of this host."""
    forget_settings(tmp_path, monkeypatch)
    made = [
        CheckResult("kernel.fuse", "ok", "FUSE: works"),
        CheckResult("cache.room", "warn", "1 GiB", "cost", "remedy"),
    ]
    monkeypatch.setattr(services, "examine", lambda *_args, **_kwargs: iter(made))
    return made


def test_the_command_tells_people_and_scripts(findings: list[CheckResult], capsys: pytest.CaptureFixture[str]) -> None:
    expected = "ok    kernel.fuse: FUSE: works\nwarn  cache.room: 1 GiB\n      cost\n      remedy\n"
    assert said(PROGRAM, capsys, ["doctor"]) == (0, expected, "")
    findings.append(CheckResult("rights.fuse", "fail", "no"))
    code, out, _ = said(PROGRAM, capsys, ["doctor", "--json"])
    assert code == 1
    told = json.loads(out)
    assert (told["v"], told["ok"]) == (1, False)
    assert [CheckResult(**one) for one in told["findings"]] == findings
