"""`bench startup`: what it makes of events, and the job itself on files of this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bench.harness import BenchError
from bench.harness.data import MIB, contents
from bench.startup import order
from bench.startup.plan import SIZES
from bench.startup.stages import course, read_events

TINY = replace(SIZES["quick"], name="tiny", image_modules=("json",), modules=("numpy",), shards=2, shard_size=16 * MIB)


class Events:
    """Those of one start, at the given seconds."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self._ids = count()

    def span(self, begin: float, end: float, stage: str, name: str, source: str = "job") -> None:
        span = f"{next(self._ids):016x}"
        for event, when in (("begin", begin), ("end", end)):
            self._add(event, when, stage, name, source, span=span)

    def instant(self, when: float, stage: str, name: str = "", source: str = "job") -> None:
        self._add("instant", when, stage, name, source)

    def _add(self, event: str, when: float, stage: str, name: str, source: str, **more: str) -> None:
        fields = {"event": event, "mono_ns": int(when * 1e9), "stage": stage, "name": name, "source": source, **more}
        self.made.append({key: value for key, value in fields.items() if value})


def overlapping() -> Events:
    events = Events()
    events.span(10, 11, "checkpoint", "mount", "bench")
    events.instant(11, "checkpoint", "warm", "imagefs")  # goes on when the job is ready
    events.instant(11, "container", "launch", "bench")
    events.span(11, 14, "image", "hot device", "imagefs")  # is part of the same interval already
    events.instant(12, "container", "exec")
    events.span(12, 13, "imports", "image")
    events.span(13, 15, "imports", "dependencies")
    events.span(15, 15, "model", "")
    events.span(15, 17.5, "checkpoint", "load")
    events.span(17.5, 18, "first_step", "")
    events.instant(18, "ready", "", "imagefs")
    events.instant(18, "ready")
    return events


def test_stages_are_unions_and_the_background_overlaps_them() -> None:
    found = course(10, overlapping().made)
    assert found.values() == {
        "time": 8.0,
        "image_stage": 2.0,
        "dependencies_stage": 2.0,
        "checkpoint_stage": 3.5,
        "step_stage": 0.5,
        "overlapped": 4.0,  # image and dependencies, beside what is brought into the cache
    }


def test_a_start_whose_events_lack_something_has_no_figures() -> None:
    events = overlapping().made
    ends = [event for event in events if (event["event"], event["stage"]) == ("end", "model")]
    with pytest.raises(BenchError, match="the stage model  has no end"):
        course(10, [event for event in events if event not in ends])
    with pytest.raises(BenchError, match="lack ready"):
        course(10, [event for event in events if event["stage"] != "ready"])


def started(tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the job, as it lies in a container, on the shards in `tmp_path`: what it says, and its events."""
    told = {"install": [sys.executable, "-c", "print('installing')"], "packages": "", "stream": "", "gpu": False}
    spool = order.lay_out(tmp_path / "job", TINY, [], told)
    text = (tmp_path / "job/order.json").read_text().replace(order.CHECKPOINT, str(tmp_path))
    (tmp_path / "job/order.json").write_text(text)
    command = [sys.executable, str(tmp_path / "job/job.py"), str(tmp_path / "job/order.json")]
    here = {"BOOTSEER_EVENTS": str(spool)}
    environment = os.environ | order.environment("http://198.51.100.1/simple/", "test") | here
    done = subprocess.run(command, input="", capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said, read_events(spool)


def test_the_job_goes_through_all_stages_and_tells_the_checksum_of_its_bytes(tmp_path: Path) -> None:
    for file in TINY.files:
        (tmp_path / file.name).parent.mkdir(exist_ok=True)
        (tmp_path / file.name).write_bytes(b"".join(contents(file, 0, file.size)))
    said, events = started(tmp_path)
    assert (said["checksum"], said["bytes"]) == (order.checksum(TINY), 2 * 2 * sum(TINY.tensors.values()))
    begun = [(event["stage"], event.get("name", "")) for event in events if event["event"] != "end"]
    assert begun == [
        ("container", "exec"),
        ("imports", "image"),
        ("dependencies", "install"),
        ("imports", "dependencies"),
        ("model", ""),
        ("checkpoint", "load"),
        ("first_step", ""),
        ("ready", ""),
    ]
    with (tmp_path / TINY.files[1].name).open("r+b") as shard:
        shard.seek(-5, os.SEEK_END)
        shard.write(b"\x17")
    assert started(tmp_path)[0]["checksum"] != said["checksum"]
