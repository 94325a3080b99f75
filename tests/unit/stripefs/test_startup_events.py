"""The writer of start-up events: every event is in a file once, or accounted for. Marks that scripts set, and the
identity that their events bear."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs import startup_events
from stripefs.startup_events import (
    STAGES,
    ProcessIdentity,
    Writer,
    default_writer,
    follow_sections,
    identity,
    span_of,
)
from tests.support.start_events import TRACE, events
from tests.support.waiting import PATIENCE

WHO = ProcessIdentity("job", "run", 0, "node", 3)


def accounted(found: Sequence[dict[str, Any]], emitted: int) -> None:
    """Each number is there once, and `dropped` tells how many are not."""
    numbers = [event["seq"] for event in found]
    assert len(numbers) == len(set(numbers))
    dropped = [event for event in found if event["stage"] == "dropped"]
    allotted = emitted + len(dropped)
    assert sum(event["facts"]["events"] for event in dropped) == max(numbers) + 1 - len(numbers)
    assert max(numbers) + 1 >= allotted


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2000) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=8,
)
TEXT = st.text(st.characters(), max_size=5000)  # lone surrogates among them
EMIT = st.tuples(st.just("emit"), TEXT, st.dictionaries(st.text(max_size=100), ANYTHING, max_size=6))
FAULT = st.tuples(st.sampled_from(["full", "short"]), st.integers(0, 400), st.none())
STEP = EMIT | FAULT | st.tuples(st.sampled_from(["remove", "block", "close"]), st.none(), st.none())


class Disk:
    """os.write for the writer's thread: `left` bytes go through, then errors come; None for a disk that has room."""

    def __init__(self) -> None:
        self.left: int | None = None

    def write(self, descriptor: int, data: bytes) -> int:
        if self.left is None:
            return real_write(descriptor, data)
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real_write(descriptor, data[: self.left])
        self.left -= done
        return done


real_write = os.write


@given(st.lists(STEP, max_size=40), st.integers(400, 4000))
def test_every_event_is_in_a_file_once_or_accounted_for(steps: list[tuple[Any, Any, Any]], file_bytes: int) -> None:
    disk, seen, emitted = Disk(), [], 0
    with tempfile.TemporaryDirectory() as above, pytest.MonkeyPatch.context() as patch:
        folder = Path(above) / "spool"
        patch.setattr(os, "write", disk.write)
        writer = Writer(str(folder), WHO, "job", file_bytes=file_bytes, files=3)
        for step, first, second in steps:
            if step == "emit":
                writer.emit("instant", "model", first, facts=second)
                emitted += 1
                continue
            assert writer.close(PATIENCE)
            if step in ("full", "short"):
                disk.left = 0 if step == "full" else first
            elif step == "close":
                disk.left = None
            elif folder.is_dir():
                seen += events(folder)
                shutil.rmtree(folder)
                if step == "block":
                    folder.write_bytes(b"")
            else:
                folder.unlink(missing_ok=True)
        disk.left = None
        if folder.is_file():
            folder.unlink()
        assert writer.close(PATIENCE)
        writer.instant("ready")
        assert writer.close(PATIENCE)
        accounted(seen + events(folder), emitted + 1)


def test_a_line_that_stays_torn_ends_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk, writer = Disk(), Writer(str(tmp_path), WHO, "job")
    monkeypatch.setattr(os, "write", disk.write)
    monkeypatch.setattr(os, "ftruncate", refuse)
    for name, disk.left in (("whole", None), ("torn", 50), ("after", None)):
        writer.instant("model", name)
        assert writer.close(PATIENCE)
    first, second = (path.read_bytes().split(b"\n") for path in sorted(tmp_path.iterdir()))
    assert (json.loads(first[0])["name"], len(first[1])) == ("whole", 50)
    assert [json.loads(line)["stage"] for line in second[:-1]] == ["model", "dropped"]


def test_the_first_file_and_the_newest_are_kept(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), WHO, "job", file_bytes=2000, files=3)
    for number in range(200):
        writer.instant("model", str(number))
        assert number % 20 or writer.close(PATIENCE)
    assert writer.close(PATIENCE)
    assert len(list(tmp_path.iterdir())) == 3
    found = events(tmp_path)
    names = {event.get("name") for event in found}
    assert {"0", "1", "199"} <= names
    assert "100" not in names
    assert {event["facts"]["cause"] for event in found if event["stage"] == "dropped"} == {"rotation"}


def test_a_full_queue_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_events, "QUEUE", 0)
    writer = Writer(str(tmp_path), WHO, "job")
    for _ in range(7):
        writer.instant("model")
    monkeypatch.undo()
    writer.instant("ready")
    assert writer.close(PATIENCE)
    found = events(tmp_path)
    accounted(found, 8)
    assert [event["facts"] for event in found if event["stage"] == "dropped"] == [{"events": 7, "cause": "queue"}]


def script(tmp_path: Path, text: str, *, code: int = 0) -> None:
    """Run a program that finds `writer`."""
    begin = "import os, sys\nfrom stripefs.startup_events import *\n"
    begin += f"writer = Writer({str(tmp_path / 'spool')!r}, ProcessIdentity('job', 'run', 0, 'node'), 'job')\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + text], timeout=PATIENCE, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")


def by_process(tmp_path: Path) -> list[list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for event in events(tmp_path / "spool"):
        found.setdefault(event["pid"], []).append(event)
    return list(found.values())


FORKED = """
import threading
threading.Thread(target=lambda: [writer.instant("model", "other") for _ in range(500)]).start()
for number in range(20):
    writer.instant("model", "parent")
    child = os.fork()
    if not child:
        writer.instant("model", "child")
        writer.close(30)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_forked_child_has_a_file_and_numbers_of_its_own(tmp_path: Path) -> None:
    script(tmp_path, FORKED)
    *found, parent = sorted(by_process(tmp_path), key=len)
    assert len(found) == 20
    assert all([event["seq"] for event in child] == [0] and child[0]["name"] == "child" for child in found)
    assert sorted(event["seq"] for event in parent) == list(range(520))


def test_a_process_of_multiprocessing_writes_before_it_ends(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import multiprocessing
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=writer.instant, args=("model",))
    process.start()
    process.join()
""",
    )
    assert [[event["stage"] for event in process] for process in by_process(tmp_path)] == [["model"]]


def test_signal_handlers_emit_while_threads_do(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import signal, threading
signal.signal(signal.SIGALRM, lambda *_: writer.instant("model", "signal"))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
def emit():
    for _ in range(2000):
        with writer.begin("model", "thread"):
            pass
threads = [threading.Thread(target=emit) for _ in range(3)]
for thread in threads:
    thread.start()
emit()
for thread in threads:
    thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
writer.close(60)
""",
    )
    (found,) = by_process(tmp_path)
    assert sorted(event["seq"] for event in found) == list(range(len(found)))
    assert len([event for event in found if event["name"] == "thread"]) == 16_000


def test_signals_are_for_the_threads_of_the_program(tmp_path: Path) -> None:
    """One that waits for a signal gets it, although the writer's thread would let it pass."""
    script(
        tmp_path,
        """
import signal
writer.instant("model")
writer.close(60)
for thread in os.listdir("/proc/self/task"):
    blocked = next(line for line in open(f"/proc/self/task/{thread}/status") if line.startswith("SigBlk"))
    assert bool(int(blocked.split()[1], 16) >> (signal.SIGCHLD - 1) & 1) == (int(thread) != os.getpid()), blocked
""",
    )


HANGING = """
import threading
os.{call} = lambda *_, **__: threading.Event().wait()
for number in range(20_000):
    writer.instant("model", "x")
print(writer.close(0.1), len(os.environ) > 0)
"""


@pytest.mark.parametrize("call", ["makedirs", "open", "write"])
def test_a_disk_that_never_answers_keeps_no_process(tmp_path: Path, call: str) -> None:
    script(tmp_path, HANGING.format(call=call))


def test_the_end_of_the_interpreter_writes_everything(tmp_path: Path) -> None:
    script(tmp_path, "[writer.instant('model', str(number)) for number in range(5000)]\nsys.exit(3)", code=3)
    (found,) = by_process(tmp_path)
    accounted(found, 5000)


def test_without_a_thread_the_end_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None can be started when the interpreter of Python 3.12 and later ends."""

    def refused(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("_thread.start_new_thread", refused)
    writer = Writer(str(tmp_path), WHO, "job")
    for number in range(2):
        writer.instant("model", str(number))
        assert writer.close(0)
    accounted(events(tmp_path), 2)


class Client:
    """RankMonitorClient, as far as jobs know it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start_section(self, section: str) -> None:
        self.told.append(f"+{section}")

    def end_section(self, section: str) -> None:
        self.told.append(f"-{section}")


def test_sections_are_stages_until_the_first_step_has_ended(tmp_path: Path) -> None:
    writer, client = Writer(str(tmp_path), WHO, "job"), Client()
    follow_sections(client, writer)
    for section in ("setup", "checkpointing", "step", "step", "checkpointing"):
        client.start_section(section)
        client.end_section(section)
    writer.close(PATIENCE)
    assert len(client.told) == 10
    stages = ["setup", "checkpoint", "first_step"]
    assert [event["stage"] for event in events(tmp_path)] == [stage for stage in stages for _ in range(2)]
    assert set(stages) < set(STAGES)


def test_stages_as_context_managers_and_decorators(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), WHO._replace(parent="a" * 16), "job")

    @writer.stage("compile")
    def compiled(depth: int) -> int:
        return depth and 1 + compiled(depth - 1)

    @writer.stage("first_batch", "batch")
    async def batch() -> str:
        return "answer"

    assert compiled(1) == 1
    with pytest.raises(StopIteration, match="answer"):
        batch().send(None)
    stage = writer.stage("model")
    with pytest.raises(KeyError), stage as outer, stage as inner:
        raise KeyError
    assert outer.id != inner.id
    writer.close(PATIENCE)
    found = events(tmp_path)
    spans = {event["span"]: event for event in found if event["event"] == "begin"}
    assert len(spans) == 5
    assert {event["parent"] for event in spans.values()} == {"a" * 16}
    ends = [event for event in found if event["event"] == "end"]
    assert {event["span"] for event in ends} == set(spans)
    assert [event.get("facts") for event in ends[-2:]] == [{"error": "KeyError"}] * 2
    assert {event["name"] for event in found if event["stage"] == "first_batch"} == {"batch"}


def test_a_process_has_one_writer_of_a_source() -> None:
    assert default_writer() is default_writer("job") is default_writer(source="job")  # its events are numbered once


class NoText:
    def __bool__(self) -> bool:
        raise ValueError

    def __float__(self) -> float:
        raise RuntimeError  # as tensors of several elements do


def test_no_value_of_a_job_is_an_error_in_it(tmp_path: Path) -> None:
    """Arrays and tensors are no texts and have no truth, and callables that are no functions have no name."""
    writer = Writer(str(tmp_path), WHO, "job")
    assert writer.stage("model")(functools.partial(int, "7"))() == 7
    writer.instant(["model"])  # type: ignore[arg-type]
    writer.instant("model", NoText())  # type: ignore[arg-type]
    writer.instant("model", kind="\ud800")
    writer.instant("model", a=np.float32(0.5), b=np.array([1, 2]), c=np.int64(3), d=NoText())
    assert writer.close(PATIENCE)
    found = events(tmp_path)
    assert [event["name"] for event in found[:2]] == ["partial", "partial"]
    facts = found[-1]["facts"]
    assert (facts["a"], facts["b"], facts["c"], type(facts["d"])) == (0.5, "array([1, 2])", 3, str)
    assert {event["seq"] for event in found} == {0, 1, found[-1]["seq"]}  # the others are gaps
    assert "cannot be written down" in writer.problem


# -- marks


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
    monkeypatch.setenv("POSIXLY_CORRECT", "1")  # flags may follow words all the same
    assert run_mark(monkeypatch, tmp_path, "--fact=a=1", "checkpointing", "--name", "a", "begin") == 0
    assert run_mark(monkeypatch, tmp_path, "checkpoint", "end", "--name=a", *facts) == 0
    assert capsys.readouterr().err == ""
    first, second = sorted(events(tmp_path), key=lambda event: event["event"])
    assert first["span"] == second["span"] == span_of(identity(), "checkpoint", "a")
    assert (first["facts"], second["facts"]) == ({"a": 1}, {"bytes": 12, "source": "store", "warm": True})


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
