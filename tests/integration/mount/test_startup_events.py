"""Events that a mount writes about the checkpoints that are read from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stripefs.settings import CacheSettings
from stripefs.stalls import LEAST
from stripefs.testing.simulated_hosts import write_control
from tests.support.caches import write
from tests.support.start_events import events_in, pairs
from tests.support.waiting import eventually
from tests.tools.mounts import MIB, Mounts, sha256

pytestmark = [pytest.mark.mount, pytest.mark.root]

SIZE = 24 * MIB + 4567


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of events; those of this process's programs belong to run r7."""
    monkeypatch.setenv("BOOTSEER_RUN", "r7")
    return tmp_path / "events"


def test_bytes_and_where_they_came_from(mounts: Mounts, spool: Path, tmp_path: Path) -> None:
    write(mounts.source / "model", SIZE)
    (mounts.source / "config.json").write_text("{}")
    prepared = mounts.prepare(mounts.url("throttled+", "?rate=50MB/s&hosts=4"), memory=256 * MIB, events=str(spool))
    cache = CacheSettings(directory=str(tmp_path / "cache"), size=1 << 40)
    first = mounts.start(prepared._replace(cache=cache)).wait_ready()
    sha256(first.path / "model")
    (first.path / "config.json").read_text()
    eventually(lambda: not first.status()["cache"]["waiting_bytes"], "what was read to be on disk")
    assert first.stop() == 0
    events = events_in(spool)
    assert {(one["run"], one["source"], one["stage"]) for one in events} == {("r7", "stripefs", "checkpoint")}
    (first_byte,) = [one for one in events if one["event"] == "instant"]
    (found,) = pairs(events).items()
    name, (begin, end) = found[0][1], found[1]
    assert (name.endswith("model"), first_byte["parent"]) == (True, begin["span"])
    assert begin["mono_ns"] < first_byte["mono_ns"] <= end["mono_ns"]
    assert end["facts"] | {"bytes": SIZE, "cache_bytes": 0, "store_bytes": SIZE} == end["facts"]
    again = mounts.start(prepared._replace(cache=cache)).wait_ready()
    sha256(again.path / "model")
    assert again.stop() == 0
    (_, end) = pairs([one for one in events_in(spool) if one not in events])["checkpoint", name]
    assert end["facts"] | {"bytes": SIZE, "cache_bytes": SIZE, "store_bytes": 0} == end["facts"]


def test_a_host_that_falls_silent(mounts: Mounts, spool: Path, tmp_path: Path) -> None:
    write(mounts.source / "model", SIZE)
    control = tmp_path / "control"
    write_control(control, {"h0": "frozen"})
    hosts = f"?hosts=2&replication=2&placement=even&host-timeout=60s&control={control}"
    mounted = mounts.mount(mounts.url("throttled+", hosts), memory=256 * MIB, events=str(spool))
    sha256(mounted.path / "model")
    assert mounted.stop() == 0
    events = events_in(spool)
    stalls = [one for one in events if one.get("name") == "stall"]
    assert {(one["facts"]["cause"], one["facts"]["host"], one["kind"]) for one in stalls} == {("store", "h0", "wait")}
    begin, end = pairs(events)["checkpoint", "stall"]
    assert end["mono_ns"] - begin["mono_ns"] >= LEAST * 1e9
    (facts,) = [one["facts"] for one in events if one["event"] == "end" and one["name"] != "stall"]
    assert facts["host"] == "h0"
    assert SIZE <= facts["bytes"] < SIZE + MIB  # on a busy machine the kernel asks for the last page twice


def test_a_program_that_reads_without_a_mount(mounts: Mounts, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mounts.source / "model", SIZE)
    monkeypatch.setenv("BOOTSEER_EVENTS", str(spool))
    program = (
        f"import stripefs\nwith stripefs.open('file://{mounts.source}/model') as file:\n    print(len(file.read()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{SIZE}\n"
    (spans,) = pairs(events_in(spool)).values()
    assert spans[1]["facts"] == {"bytes": SIZE, "cache_bytes": 0, "store_bytes": SIZE} | spans[1]["facts"]
