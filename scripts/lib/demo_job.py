"""One whole job, started as people start it today and by one command, and where the time of both went.

The job (`bench.startup.job`) imports a few modules of its image and of the packages that it installs at its start,
loads a checkpoint by safetensors, and takes one step. Today the image is pulled and unpacked, the container's pip
installs, and the checkpoint is read in one stream, one after the other. `imagefs run FILE.toml` starts it on a machine
that has nothing either, after two others of its fleet: the first installed and published, the second was recorded.
Image, packages and snapshots come over the same slow link, the checkpoint from hosts of its own. Both starts write
events, of which `imagefs startup report` makes the table. The job prints the checksum of what it loaded.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from demo_deps import PACKAGES, await_snapshot, package_index, pins_of
from demo_files import BLOCK, HOSTS, RATE, STRIPEFS
from demo_images import IMAGEFS, MODULES, TAG, Place, await_plan, publish, pull
from demo_tools import Failed, command, say

from bench.harness.cluster import Cluster
from bench.harness.data import MIB, contents
from bench.harness.programs import output, started
from bench.startup import order
from bench.startup.plan import Size
from bench.startup.unpack import container
from stripefs.startup_events import ENV_FOLDER, ENV_JOB, ENV_NODE, ENV_RUN, ProcessIdentity, Writer, span_of

__all__ = ["demonstrate", "lacking", "on_cluster", "simulated"]

SIZE = Size(
    "demo",
    MODULES,
    (*(name for name in PACKAGES if name != "numpy"), "safetensors"),
    ("pandas", "pydantic", "safetensors"),
    shards=3,
    shard_size=128 * MIB,
    datanodes=HOSTS,
)
_FOLDER = f"startup-{SIZE.name}"
_SHOWN = f"{order.CHECKPOINT}/{_FOLDER}"
_JOB, _NODE = "train", "machine"
_ONE_STREAM = "threads=1,per_host=1,nohedge"
_TABLE = "BEFORE AND AFTER"


def lacking() -> str:
    """The one line that says why this part cannot be shown here, "" where it can."""
    if os.geteuid():
        return "a job that installs packages in its container needs root: sudo ./scripts/demo job"
    return ""


def demonstrate(place: Place, checkpoint: str, folder: Path, page: str = "") -> None:
    """Start the job both ways and show the table. page: an HTML file to write as well.

    Raises Failed when the job loads other bytes, CalledProcessError, BenchError.
    """
    publish(place, folder)
    pins = pins_of(SIZE.packages)
    size = SIZE.shards * SIZE.shard_size >> 20
    with package_index(pins, folder / "job-index") as settings:
        job = _Job(place, checkpoint, folder / "job", pins, settings, order.checksum(SIZE))
        say("installs", ", ".join(pins))
        say("checkpoint", f"{size} MiB of safetensors on {HOSTS} hosts of {RATE} MB/s each")
        job.by_command("first", place.put("images"), "--deps-wait")
        job.by_command("second", place.put("images"))
        await_plan(place, f"{TAG}/{_JOB}")
        await_snapshot(place.put("images"), hot=True)
        say("fleet", "one start has installed and published, a second one was recorded; neither is counted")
        today = job.by_hand()
        say("today", f"pull and unpack, pip install, one stream: {today:.1f} s until the first step is done")
        ours = job.by_command("fresh", place.link("images"))
        say("one command", f"imagefs run {_JOB}.toml on a machine that has nothing: {ours:.1f} s")
    say("speed-up", f"{today / ours:.1f} times, the same bytes: yes")
    words = ["--html", page] if page else []
    sides = ("--before", job.events("today"), "--after", job.events("fresh"))
    report = command(IMAGEFS, "startup", "report", *sides, *words)
    print("\n" + next(part for part in report.split("\n\n") if part.startswith(_TABLE)))
    print("\nStages overlap, so that they add up to more than the total.")
    if page:
        say("page", page)
    say("more", f"{IMAGEFS} startup report --help; docs/jobs.md, docs/startup-report.md")


@dataclass(frozen=True)
class _Job:
    """The job, and its starts below `folder`, each in a folder named like it."""

    place: Place
    checkpoint: str
    folder: Path
    pins: Sequence[str]
    pip: Mapping[str, str]
    checksum: str

    def events(self, name: str) -> Path:
        """The folder in which a start has left its events."""
        return self.folder / name / "job/events"

    def by_command(self, name: str, store: str, *flags: str) -> float:
        """Seconds until it was ready by `imagefs run`, on a machine that has nothing."""
        machine = self.folder / name
        self._lay_out(name, install=None)
        file = machine / f"{_JOB}.toml"
        keys = {
            "image": f"{store}#{TAG}",
            "command": order.COMMAND,
            "workload": _JOB,
            "deps": [str(machine / "job/requirements.txt")],
            "deps-target": order.PACKAGES,
            "deps-allow-conflicts": True,  # of packages that are installed with --no-deps
            "checkpoint": [f"{self.checkpoint}:{_SHOWN}"],
            "checkpoint-share": "1",  # the checkpoint comes over other links than the image
            "bind": [f"{machine / 'job'}:{order.JOB}"],
            "events": str(self.events(name)),
            "env": [f"{key}={value}" for key, value in self.pip.items()],
        }
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
        own = {"IMAGEFS_CACHE": str(machine / "cache"), "IMAGEFS_RUNTIME": str(machine / "run")}
        begun = time.time()
        environment = {**os.environ, **own, ENV_RUN: name, ENV_NODE: _NODE}
        with started([str(IMAGEFS), "run", *flags, str(file)], environment) as start:
            return self._ready(start.said) - begun

    def by_hand(self) -> float:
        """Seconds until it was ready as it is started today, on a machine that has nothing."""
        name, machine = "today", self.folder / "today"
        self._lay_out(name, install=order.install_command("pip"))
        who = ProcessIdentity(job=_JOB, run=name, node=_NODE)
        events = Writer(str(self.events(name)), who, "demo")
        environment = {**self.pip, ENV_FOLDER: f"{order.JOB}/events", ENV_JOB: _JOB, ENV_RUN: name, ENV_NODE: _NODE}
        with self._in_one_stream(machine / "checkpoint") as loaded:
            begun = time.time()
            with events.begin("image", "pull"):
                pull(self.place, machine / "bundle/rootfs")
            output("runc", "spec", cwd=machine / "bundle")
            binds = {str(machine / "job"): order.JOB, str(loaded): _SHOWN}
            called = f"bootseer-demo-{os.getpid()}"
            wall, mono = time.time_ns(), time.monotonic_ns()
            with (
                container(machine / "bundle", called, [*order.COMMAND], binds, (), environment) as words,
                started(words) as start,
            ):
                ready, ran = self._ready(start.said), int(start.said["began"] * 1e9)
                span = {"stage": "container", "name": "exec", "span": span_of(who, "container", "exec")}
                events.emit("begin", wall_ns=wall, mono_ns=mono, **span)
                events.emit("end", wall_ns=ran, mono_ns=mono + ran - wall, **span)
                events.close()
        return ready - begun

    def _lay_out(self, name: str, install: list[str] | None) -> None:
        told = {"install": install, "packages": order.PACKAGES, "stream": "", "gpu": False}
        order.lay_out(self.folder / name / "job", SIZE, self.pins, told)

    def _ready(self, said: Mapping[str, Any]) -> float:
        """Time at which the job was ready. Raises Failed where it loaded other bytes."""
        if said["checksum"] != self.checksum:
            raise Failed("the job loaded other bytes than the checkpoint has")
        return float(said["ready"])

    @contextmanager
    def _in_one_stream(self, mountpoint: Path) -> Iterator[Path]:
        mountpoint.mkdir()
        command(STRIPEFS, "mount", "-o", _ONE_STREAM, self.checkpoint, mountpoint)
        try:
            yield mountpoint
        finally:
            command(STRIPEFS, "umount", mountpoint)


def simulated(folder: Path) -> str:
    """The URL of the checkpoint on simulated hosts."""
    source = folder / "checkpoints"
    for file in SIZE.files:
        path = source / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as opened:
            opened.writelines(contents(file, 0, file.size))
    where = quote(str(source / _FOLDER))
    return f"throttled+file://{where}?hosts={HOSTS}&rate={RATE}MB/s&block-size={BLOCK}&seed=2"


def on_cluster(hdfs: Cluster) -> str:
    """The URL of the checkpoint in a real HDFS."""
    hdfs.write(SIZE.files, lambda line: say("hosts", line))
    return f"{hdfs.url}/bench/{_FOLDER}"
