"""Helper programs of the daemon: whatever they print or do, their caller gets an answer or an OSError; leftovers go."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon import helpers
from imagefs.daemon.helpers import MOST_WAITING, PROGRAMS, RecordedStart, Sweeper, TraceMaker, run_helper
from imagefs.plane import kernel_mounts
from imagefs.settings import DaemonSettings
from stripefs.background import contain
from tests.unit.imagefs.daemon.fake_host import attachment


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the module `helper` that is run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(text: str) -> str:
        (tmp_path / "helper.py").write_text(f"import json, os, sys, time\n{text}\n")
        return "helper"

    return write


async def test_the_answer_is_the_last_line(program: Any) -> None:
    module = program("print('a library says hello'); print(json.dumps({'got': json.load(sys.stdin)['x']}))")
    assert await run_helper(module, {"x": 3}, 60) == {"got": 3}
    assert await run_helper(program("sys.stdin.read()"), {"x": "y" * (1 << 20)}, 60) == {}
    assert await run_helper(program("print('{}')"), {"x": "y" * (1 << 20)}, 60) == {}  # which it does not read


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("print('hello')", "gave no answer"),
        ("print('[1]')", "gave no answer"),
        ("print('[' * 100000)", "gave no answer"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe')", "gave no answer"),
        ("sys.exit('it is broken')", "it is broken"),
        ("sys.exit(7)", "ended with code 7"),
        ("os.kill(os.getpid(), 9)", "ended with code -9"),
        ("while True: print('x' * 1000)", "ended with code"),
    ],
)
async def test_what_goes_wrong_is_an_error_of_the_caller(program: Any, text: str, error: str) -> None:
    with pytest.raises(OSError, match=error):
        await run_helper(program(text), {}, 60)


async def test_one_that_does_not_end_is_killed(program: Any, tmp_path: Path, mock_clock: MockClock) -> None:
    module = program(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    async with trio.open_nursery() as nursery:

        async def late() -> None:
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await trio.to_thread.run_sync(lambda: None)
            mock_clock.jump(61)

        nursery.start_soon(late)
        with pytest.raises(OSError, match="did not end within 60 s"):
            await run_helper(module, {}, 60)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


# -- learning --------------------------------------------------------------------------------------------------------


START = RecordedStart(b"raw", "ready", 1.0, "")


async def test_few_programs_run_at_once_and_few_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, most, done = 0, 0, 0
    go = trio.Event()

    async def fake(module: str, facts: Any, within: float, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await go.wait()
        running, done = running - 1, done + 1
        return {"stored": "elsewhere"}

    monkeypatch.setattr(helpers, "run_helper", fake)
    learner = TraceMaker(DaemonSettings(cache=str(tmp_path)))
    async with trio.open_nursery() as nursery:
        for number in range(MOST_WAITING + 10):
            nursery.start_soon(learner.make_trace, attachment(f"{number:032x}"), START)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert (most, done) == (PROGRAMS, MOST_WAITING)
    assert caplog.text.count("leaves no trace") == 10


@pytest.mark.parametrize("error", [OSError("broken"), ValueError("unforeseen"), KeyError("stored")])
async def test_what_goes_wrong_reaches_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(helpers, "run_helper", AsyncMock(side_effect=error))
    learner = TraceMaker(DaemonSettings(cache=str(tmp_path)))
    for number in range(MOST_WAITING + 1):
        one = attachment(f"{number:032x}")
        await contain("learning from a start", learner.make_trace, one, START)  # as the daemon runs it
    assert "others wait" not in caplog.text
    assert not list((tmp_path / "traces").glob("*.raw")) or not isinstance(error, OSError)


async def test_an_answer_of_another_program_is_no_reason_to_improve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"plan_traces": 1, "stored": "s3://x"}
    run = AsyncMock(side_effect=[{}, stored, {}])
    monkeypatch.setattr(helpers, "run_helper", run)
    learner = TraceMaker(DaemonSettings(cache=str(tmp_path)))
    for _ in range(2):
        await learner.make_trace(attachment("1", snapshot="e" * 64), START)
    asked = [call.args[0] for call in run.await_args_list]
    assert asked == ["imagefs.trace.finalize", "imagefs.trace.finalize", "imagefs.build.optimize_snapshot"]


async def test_a_trace_is_made_before_the_mount_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of the mount is there while the helper runs, and no longer; without one a trace is made as well."""
    told: list[tuple[int, Sequence[int], list[str]]] = []
    made = []

    async def fake(module: str, facts: Any, within: float, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        told.append((facts["mount"], descriptors, [os.readlink(f"/proc/self/fd/{one}") for one in descriptors]))
        return {}

    def copy(path: str, device: str) -> int:
        if device != "0:41":
            raise FileNotFoundError(path)
        made.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        return made[-1]

    monkeypatch.setattr(helpers, "run_helper", fake)
    monkeypatch.setattr(kernel_mounts, "copy", copy)
    learner = TraceMaker(DaemonSettings(cache=str(tmp_path)))
    for shown in ([str(tmp_path), "0:41"], [str(tmp_path), "0:42"], []):
        await learner.make_trace(attachment("1", shown=shown), START)
    assert told == [(made[0], [made[0]], [str(tmp_path)]), (-1, [], []), (-1, [], [])]
    assert not os.path.exists(f"/proc/self/fd/{made[0]}")


# -- sweeping --------------------------------------------------------------------------------------------------------


class Reluctant(Sweeper):
    """A sweeper of what only goes when it was tried a number of times."""

    def __init__(self, tries: int) -> None:
        super().__init__(DaemonSettings())
        self.there = {"first", "alive"}
        self.tried: list[tuple[float, Sequence[str]]] = []
        self._tries = tries

    async def _remove(self, ids: list[str]) -> None:
        self.tried.append((trio.current_time(), ids))
        if len(self.tried) == self._tries:
            self.there -= set(ids)

    async def _remains(self) -> set[str]:
        return set(self.there)


async def test_what_cannot_go_yet_is_tried_again_and_keeps_nothing_else_waiting(autojump_clock: MockClock) -> None:
    sweeper = Reluctant(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sweeper.run)
        await sweeper.find({"alive"})
        await trio.sleep(600)
        times = [when for when, _ in sweeper.tried]
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert pauses == sorted(pauses)
        assert len(pauses) > 10
        assert max(pauses) <= 60
        sweeper.there.add("second")
        sweeper.over("second")
        before = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert sweeper.tried[-1] == (before, ["first", "second"])
        await trio.sleep(6000)
        assert sweeper.there == {"alive"}
        assert len(sweeper.tried) == 100, "nothing is tried any more"
        nursery.cancel_scope.cancel()
