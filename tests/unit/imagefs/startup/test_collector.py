"""Collecting: every line that a pass has seen is in its start's object once, whatever happens between passes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.startup.collector import Collected, Collector, object_name
from stripefs.errors import HostFailed, StoreError
from stripefs.startup_events import ProcessIdentity, Writer
from stripefs.store.base import Buffer, Status
from stripefs.store.local import LocalStore
from tests.support.waiting import PATIENCE, eventually
from tests.unit.imagefs.startup.collecting import command, ended

STARTS = [ProcessIdentity("job", "run", 0, "node"), ProcessIdentity("a/b", "..", 1, "node:1"), ProcessIdentity()]


def event(start: int, number: int) -> bytes:
    who = STARTS[start]
    fields = {"job": who.job, "run": who.run, "node": who.node, "event": "instant", "stage": "model", "seq": number}
    return json.dumps({key: value for key, value in fields.items() if value != ""}).encode() + b"\n"


class Shaky(LocalStore):
    """Fails every `put` but so many."""

    left = 1 << 30

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> Status:
        if not self.left:
            raise HostFailed("away")
        self.left -= 1
        return super().put(path, data, replace=replace)


def collected(root: Path) -> dict[str, list[bytes]]:
    """Whole lines by object, without spool and part."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(root.rglob("*.jsonl")):
        data = path.read_bytes()
        assert data.endswith(b"\n")
        start = str(path.relative_to(root)).rsplit(".", 3)[0]
        found.setdefault(start, []).extend(data.splitlines(keepends=True))
    return found


WRITE = st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 2))
STEP = WRITE | st.tuples(st.sampled_from(["delete", "fail", "pass", "new", "tear"]), st.integers(0, 3), st.just(0))


@given(st.lists(STEP, max_size=60))
def test_each_line_that_a_pass_saw_is_there_once(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as above:
        spool, target = Path(above) / "spool", Path(above) / "target"
        spool.mkdir()
        store = Shaky(os.fsencode(target), str(target), make=True)
        collector = Collector(str(spool), store, part_bytes=400)
        owed: dict[bytes, str] = {}
        deleted = [0] * 4  # no writer makes a file of a name that there was
        for number, (step, which, start) in enumerate([*steps, ("pass", 0, 0)]):
            path = spool / f"node.{which}.{deleted[which]}.jsonl"
            if step == "write":
                with path.open("ab") as file:
                    file.write(event(start, number))
            elif step == "tear" and path.exists() and path.read_bytes().endswith(b"\n"):
                with path.open("ab") as file:
                    file.write(b'{"event": "begin", "sta')
            elif step == "delete":
                path.unlink(missing_ok=True)
                deleted[which] += 1
            elif step in ("pass", "fail"):
                store.left = which if step == "fail" else 1 << 30
                lines = [line for one in spool.glob("*.jsonl") for line in one.read_bytes().splitlines(keepends=True)]
                try:
                    collector.run()
                except StoreError:
                    continue
                owed |= {line: where for line in lines if line.endswith(b"\n") and (where := object_name(line))}
            elif step == "new":
                collector = Collector(str(spool), store, part_bytes=400)
        found = collected(target)
        everything = [line for lines in found.values() for line in lines]
        assert len(everything) == len(set(everything))
        for line, where in owed.items():
            assert line in found[where]
        for where, lines in found.items():
            assert {object_name(line) for line in lines} == {where}
        store.close()


def test_starts_have_objects_of_their_own_and_names_that_stores_take() -> None:
    names = {object_name(event(start, 0)) for start in range(3)}
    assert names == {"job/run/node", "a%2Fb/%2E./node%3A1", "_/_/_"}
    long = [object_name(event(0, 0).replace(b'"run"', b'"run' + b"x" * 300 + end + b'"', 1)) for end in (b"1", b"2")]
    assert long[0] == long[1] == "job/_/node"  # another field
    values = [event(0, 0).replace(b': "run"', b': "' + b"\xc3\xa4" * 300 + end + b'"') for end in (b"1", b"2")]
    first, second = map(object_name, values)
    assert first != second
    assert max(map(len, first.split("/"))) <= 100


@pytest.mark.parametrize(
    "line", [b"\n", b"null\n", b"[" * 100_000 + b"\n", b'{"stage": 1, "event": "end"}\n', b"\xff\n"]
)
def test_lines_that_are_no_events_stay_where_they_are(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.jsonl").write_bytes(line + event(0, 1))
    store = LocalStore(os.fsencode(tmp_path / "target"), "", make=True)
    assert Collector(str(tmp_path / "spool"), store).run() == Collected(1, 1, 1, 1)
    assert collected(tmp_path / "target") == {"job/run/node": [event(0, 1)]}


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """A pipe, a directory and a link out of the spool, and what another user keeps to itself."""
    spool = tmp_path / "spool"
    (spool / "a.jsonl").mkdir(parents=True)
    os.mkfifo(spool / "b.jsonl")
    (tmp_path / "outside").write_bytes(event(1, 1))
    (spool / "c.jsonl").symlink_to(tmp_path / "outside")
    (spool / "d.jsonl").write_bytes(event(0, 1))
    collector = Collector(str(spool), LocalStore(os.fsencode(tmp_path / "target"), "", make=True))
    assert collector.run() == Collected(1, 1, 1, refused=3)
    assert collector.run() == Collected()
    assert collected(tmp_path / "target") == {"job/run/node": [event(0, 1)]}


def catches_sigterm(process: subprocess.Popen[str]) -> bool:
    caught = re.search(r"^SigCgt:\s+(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_collectors_side_by_side_while_processes_write(tmp_path: Path) -> None:
    spool, target = tmp_path / "spool", tmp_path / "target"
    writers = [Writer(str(spool), start, "job") for start in STARTS]
    running = [command("--follow", "--interval", "0.05", spool, target) for _ in range(2)]
    for number in range(300):
        for writer in writers:
            writer.instant("model", str(number))
    eventually(lambda: len(collected(target)) == 3, "all starts")
    eventually(lambda: all(map(catches_sigterm, running)), "both to follow")
    for writer in writers:
        writer.instant("ready")
        assert writer.close(PATIENCE)
    running.append(command(BOOTSEER_EVENTS=str(spool), BOOTSEER_COLLECTOR=str(target)))
    for process in running:
        process.terminate() if "--follow" in process.args else None  # type: ignore[operator]
        code, _, err = ended(process)
        assert (code, err) == (0, "")
    events = {where: [json.loads(line) for line in lines] for where, lines in collected(target).items()}
    assert {where: len(found) for where, found in events.items()} == dict.fromkeys(events, 301)
    assert all(sorted(event["seq"] for event in found) == list(range(301)) for found in events.values())


def test_follow_ends_with_its_process(tmp_path: Path) -> None:
    job = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = command("--follow", "--interval", "60", "--pid", job.pid, tmp_path / "spool", tmp_path / "target")
    eventually((tmp_path / "spool" / ".id").exists, "the first pass")
    (tmp_path / "spool" / "late.jsonl").write_bytes(event(0, 1))
    job.communicate(b"\n", timeout=PATIENCE)
    assert ended(process) == (0, "1 events are new, 1 objects were written\n", "")
    assert collected(tmp_path / "target") == {"job/run/node": [event(0, 1)]}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{}/none", "{}/target"], 2, "{}/none is no spool folder: No such file or directory"),
        (["{}"], 2, "no collector is named; give it, or set BOOTSEER_COLLECTOR"),
        (["{}", "http://127.0.0.1:9/x"], 2, "http://127.0.0.1:9/x cannot be written to"),
        (["--patience", "0.5", "{}", "delayed+file://{}/target?delay=30s"], 3, "the collector takes longer than 0.5 s"),
    ],
)
def test_errors_are_one_line_and_leave_the_spool(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(event(0, 1))
    result, out, err = ended(command(*[word.format(tmp_path) for word in words]))
    assert (result, out) == (code, "")
    assert err.startswith(f"imagefs: {said.format(tmp_path)}")
    assert err.count("\n") == 1
    assert (tmp_path / "a.jsonl").read_bytes() == event(0, 1)
