"""Marks that scripts set, and the identity that their events bear."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stripefs import startup_events
from stripefs.startup_events import (
    ProcessIdentity,
    identity,
    span_of,
)
from tests.support.start_events import TRACE, events
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "JOB_NAME": "x"}, ProcessIdentity("x", "7", 0, "n", 3)),
        ({"BOOTSEER_RUN": "a", "SLURM_JOB_ID": "7", "RANK": "-1"}, ProcessIdentity("", "a", 0, "n")),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, ProcessIdentity("", "7", 0, "n")),
        ({"TRACEPARENT": TRACE}, ProcessIdentity("", "4" * 32, 0, "n", None, "4" * 32, "b" * 16)),
        ({"TRACEPARENT": TRACE.replace("00-", "ff-", 1)}, ProcessIdentity("", "", 0, "n")),
        ({"TRACEPARENT": TRACE.replace("b", "0")}, ProcessIdentity("", "", 0, "n")),
        ({"RANK": "9" * 5000, "TORCHELASTIC_RESTART_COUNT": "2"}, ProcessIdentity("", "", 2, "n")),
    ],
)
def test_the_identity(environ: dict[str, str], expected: ProcessIdentity) -> None:
    assert identity({"BOOTSEER_NODE": "n", **environ}) == expected


def run_mark(monkeypatch: pytest.MonkeyPatch, spool: Path | str, *words: str) -> int:
    monkeypatch.setenv("BOOTSEER_EVENTS", str(spool))
    return startup_events.main(["mark", *words])


def test_marks_of_two_processes_make_one_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = ["--fact", "bytes=12", "--fact=source=store", "--fact", "warm=true"]
    assert run_mark(monkeypatch, tmp_path, "checkpointing", "begin", "--name", "a") == 0
    assert run_mark(monkeypatch, tmp_path, "checkpoint", "end", "--name=a", *facts) == 0
    assert capsys.readouterr().err == ""
    first, second = sorted(events(tmp_path), key=lambda event: event["event"])
    assert first["span"] == second["span"] == span_of(identity(), "checkpoint", "a")
    assert second["facts"] == {"bytes": 12, "source": "store", "warm": True}


def test_flags_of_a_mark_may_follow_its_words_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSIXLY_CORRECT", "1")
    assert run_mark(monkeypatch, tmp_path, "--fact=a=1", "checkpoint", "--name", "x", "begin", "--fact", "b=2") == 0
    (event,) = events(tmp_path)
    assert (event["event"], event["name"], event["facts"]) == ("begin", "x", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("spool", "words", "code", "said"),
    [
        ("/dev/null/x", ["ready"], 0, "the event is lost: /dev/null/x: Not a directory"),
        ("", ["ready"], 0, ""),
        ("{}", ["tokenizer"], 0, "'tokenizer' is no stage that reports know: queue,"),
        ("{}", [], 2, "usage: "),
        ("{}", ["ready", "now"], 2, "usage: "),
        ("{}", ["--force", "ready"], 2, "usage: "),
    ],
)
def test_mark_never_fails_a_job_for_its_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spool: str,
    words: list[str],
    code: int,
    said: str,
) -> None:
    assert run_mark(monkeypatch, spool.format(tmp_path), *words) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == (1 if said else 0)
    assert [event["stage"] for event in events(tmp_path)] == (words if "{}" in spool and not code else [])


@pytest.mark.parametrize("stderr", [">&-", ">/dev/full"])
def test_nobody_hears_a_mark_and_it_fails_no_job(tmp_path: Path, stderr: str) -> None:
    line = f'"$0" "$1" mark tokenizer --events "$2" 2{stderr}'
    words = ["sh", "-c", line, sys.executable, startup_events.__file__, str(tmp_path)]
    subprocess.run(words, check=True, timeout=PATIENCE)
    assert [event["stage"] for event in events(tmp_path)] == ["tokenizer"]


def test_the_file_runs_by_itself(tmp_path: Path) -> None:
    """As in a container that has none of this project: a copy, and no packages."""
    copy = tmp_path / "copy.py"
    shutil.copy(startup_events.__file__, copy)
    line = [sys.executable, "-I", "-S", str(copy), "mark", "ready", "--events", str(tmp_path / "spool")]
    subprocess.run(line, check=True, timeout=PATIENCE)
    assert [event["stage"] for event in events(tmp_path / "spool")] == ["ready"]
