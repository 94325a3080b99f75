"""`imagefs startup report` from its arguments to what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.startup.synthetic import Fleet
from imagefs.cli.main import PROGRAM
from tests.contract import commands as command_conformance
from tests.support.waiting import PATIENCE
from tests.unit.imagefs.startup.events import event, fleet, span

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    command_conformance.forget_settings(tmp_path, monkeypatch)
    monkeypatch.delenv("BOOTSEER_COLLECTOR", raising=False)
    return lambda *words: command_conformance.said(PROGRAM, capsys, ["startup", "report", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collector folder with two runs."""
    for seed, name in enumerate(("one", "two")):
        (tmp_path / "events/train" / name).mkdir(parents=True)
        (tmp_path / "events/train" / name / "all.jsonl").write_bytes(fleet(Fleet(3, run=name, seed=seed)))
    return tmp_path / "events"


def test_json_is_one_document(run: Run, folder: Path) -> None:
    code, out, err = run(folder, "--json", "--gpus-per-node", 8, "--gpu-price", 2, "--run-length", "6h")
    document = json.loads(out)
    assert (code, err, document["version"]) == (0, "", 1)
    assert [(start["run"], start["lost"]["gpus"]) for start in document["starts"]] == [("one", 24), ("two", 24)]
    assert document["lost"]["run_length_s"] == 6 * 3600


def test_a_run_by_its_name(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOTSEER_COLLECTOR", str(folder))
    code, out, _ = run("two", "--json")
    assert (code, [start["run"] for start in json.loads(out)["starts"]]) == (0, ["two"])
    code, out, _ = run("train/two", "--json")
    assert (code, [start["run"] for start in json.loads(out)["starts"]]) == (0, ["two"])
    assert run("eval/two")[0] == 2
    code, out, err = run("three")
    assert (code, out) == (2, "")
    assert "one, two" in err


def test_before_and_after(run: Run, folder: Path) -> None:
    code, out, _ = run("--before", folder / "train/one", "--after", folder / "train/two")
    assert code == 0
    assert "BEFORE AND AFTER" in out


def test_a_page_besides_the_text(run: Run, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, err = run(folder, "--html", page)
    assert (code, err) == (0, "")
    assert out
    assert page.read_text().lower().startswith("<!doctype html>")
    code, out, err = run(folder, "--html", tmp_path / "missing" / "report.html")
    assert (code, out) == (2, "")
    assert "report.html cannot be written: No such file or directory" in err


def test_text_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.jsonl"
    name = "\x1b[2J\x07\r\u202e"
    hostile.write_bytes(
        span(0, 3, "model", name, node=name, run=name)
        + event(1, "begin", name, name, node=name, run=name)
        + event(4, "instant", "ready", node=name, run=name)
    )
    code, out, _ = run(hostile)
    assert code == 0
    assert all(letter.isprintable() or letter == "\n" for letter in out)


@pytest.mark.parametrize(("environ", "bold"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_heads_are_bold_where_a_terminal_takes_it(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], bold: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in ({"TERM": "xterm", "NO_COLOR": ""} | environ).items():
        monkeypatch.setenv(name, value)
    code, out, _ = run(folder)
    assert (code, "\x1b[1m" in out) == (0, bold)


def test_a_locale_that_lacks_letters_is_no_error(folder: Path) -> None:
    line = [str(command_conformance.program("imagefs")), "startup", "report", str(folder)]
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, env=environ, capture_output=True, timeout=PATIENCE, check=True)
    assert b"CRITICAL PATH" in done.stdout
    assert done.stdout.isascii()
    (folder / "a.jsonl").write_bytes(span(0, 1, "image", node="n\u00f6de"))
    line[2:] = ["export", "--format", "html", str(folder), "-o", "-"]
    done = subprocess.run(line, env=environ, capture_output=True, timeout=PATIENCE, check=True)
    assert "n\u00f6de" in done.stdout.decode()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name either places"),
        (("nowhere",), 2, "nowhere does not exist"),
        (("--before", "/nowhere"), 2, "given together"),
        (("--before", "/nowhere", "--after", "/nowhere"), 3, "/nowhere does not exist"),
        (("/", "--gpus", "8", "--gpus-per-node", "8"), 2, "exclude each other"),
        (("/dev/null",), 2, "none of 0 lines"),
        (("/dev/null", "--run-length", "long"), 2, "duration"),
        (("/dev/null", "--gpus", "inf"), 2, "--gpus"),
        (("/dev/null", "--gpu-price", "nan"), 2, "nan is no number"),
    ],
)
def test_misuse_is_told_in_one_line(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    answer, out, err = run(*words)
    assert (answer, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1
