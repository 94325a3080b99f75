"""What imagefs writes about a start: each event once, in order, of the start that it belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imagefs.containers import fill
from tests.imagefs.service import Service, built
from tests.started import events_in, pairs

pytestmark = [pytest.mark.mount, pytest.mark.root]

SETTINGS = {"background_rate": "0"}

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    fill(root)
    (root / "large").write_bytes(os.urandom(1 << 20) * 8)
    path = tmp_path_factory.mktemp("store")
    built(root, path, "small", {"config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]}})
    return path


@pytest.fixture
def spool(host: Service, tmp_path: Path) -> Iterator[Path]:
    """The folder of events of the commands of this test, which belong to rank 3 of run r7."""
    folder = tmp_path / "events"
    before = dict(host.environment)
    host.environment |= {
        "BOOTSEER_EVENTS": str(folder), "BOOTSEER_RUN": "r7", "BOOTSEER_RANK": "3", "BOOTSEER_NODE": "node-1",
        "TRACEPARENT": f"00-{TRACE}-b7ad6b7169203331-01",
    }  # fmt: skip
    yield folder
    host.environment = before


@pytest.mark.parametrize("record", [[], ["--no-record"]])
def test_a_container(host: Service, store: Path, spool: Path, record: list[str]) -> None:
    script = "touch $IMAGEFS_READY; echo $BOOTSEER_RUN $BOOTSEER_RANK $BOOTSEER_NODE $TRACEPARENT $BOOTSEER_EVENTS."
    said = host.ok("run", *record, f"{store}#small", "--", "sh", "-c", script)
    assert said == f"r7 3 node-1 00-{TRACE}-b7ad6b7169203331-01 .\n"
    events = events_in(spool)
    assert {(one["run"], one["rank"], one["node"], one["trace"]) for one in events} == {("r7", 3, "node-1", TRACE)}
    spans = pairs(events)
    attach, executed = spans["image", "attach"], spans["container", "exec"]
    assert attach[1]["facts"]["image"].startswith("sha256:") or len(attach[1]["facts"]["image"]) == 64
    assert executed[0]["mono_ns"] <= attach[0]["mono_ns"]
    assert attach[1]["mono_ns"] <= executed[1]["mono_ns"]
    (ready,) = [one for one in events if one["stage"] == "ready"]
    assert ready["event"] == "instant"
    assert executed[0]["mono_ns"] < ready["mono_ns"]


def test_a_command_that_cannot_be_executed(host: Service, store: Path, spool: Path) -> None:
    assert host.run("run", f"{store}#small", "--", "nothing").returncode == 127
    executed = pairs(events_in(spool))["container", "exec"]
    assert executed[1]["facts"] == {"error": "CommandNotFound"}


def test_a_folder_that_cannot_be_written_changes_nothing(host: Service, store: Path, spool: Path) -> None:
    spool.write_text("a file")
    done = host.run("run", f"{store}#small", "--", "sh", "-c", "echo done; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", "")
    assert spool.read_text() == "a file"


def test_a_mount(host: Service, store: Path, spool: Path) -> None:
    place = host.mountpoint("events")
    host.ok("mount", f"{store}#small", str(place))
    host.ok("ready", str(place))
    host.ok("umount", str(place))
    events = events_in(spool)
    begin, end = pairs(events)["image", "attach"]
    assert (begin["facts"]["mount"], "error" in end["facts"]) == (str(place), False)
    assert [one["event"] for one in events if one["stage"] == "ready"] == ["instant"]


def test_without_a_folder_nothing_is_written_or_handed_on(host: Service, store: Path, spool: Path) -> None:
    del host.environment["BOOTSEER_EVENTS"], host.environment["BOOTSEER_NODE"]
    said = host.ok("run", f"{store}#small", "--", "sh", "-c", "echo $BOOTSEER_RUN $BOOTSEER_NODE.")
    assert said == "r7 .\n"
    assert not spool.exists()
