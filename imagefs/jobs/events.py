"""The events of a job's start: their folder, the names of the start, what its container needs to add its own, and the
time of each stage."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from imagefs.errors import RunError
from imagefs.run.options import Bind
from stripefs import startup_events
from stripefs.startup_events import ENV_ATTEMPT, ENV_FOLDER, ENV_JOB, ENV_NODE, ENV_RANK, ENV_RUN, STAGES, identity

__all__ = [
    "COLLECTOR", "COMMAND", "FOLDER", "PROGRAM", "collected", "read_events", "ready_at", "recorded", "stage_seconds",
]  # fmt: skip

COLLECTOR = "BOOTSEER_COLLECTOR"
"""Names the collector folder."""

FOLDER, PROGRAM = "/run/imagefs/events", "/run/imagefs/startup_events.py"
"""Paths in a container of the folder of events, and of the program that writes them in any image with Python."""

COMMAND = (sys.executable, "-P", "-c", "import sys; from imagefs.cli.main import run; sys.exit(run())")
"""The command `imagefs`, whatever PATH holds."""


@contextlib.contextmanager
def collected(folder: str, url: str) -> Iterator[None]:
    """Copy the events in `folder` to the collector folder at `url` when the block ends. The program that copies tells
    of errors, which harm no job."""
    try:
        yield
    finally:
        command = [*COMMAND, "startup", "collect", "--quiet", os.path.abspath(folder), url]
        with contextlib.suppress(OSError):  # the machine is out of processes
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def recorded(folder: str, job: str, environ: MutableMapping[str, str]) -> Iterator[tuple[list[Bind], list[str]]]:
    """Have the programs of this start write their events to `folder`, which is made where it is missing: the variables
    of `environ` say so until the block ends. Answers the binds of a container, and its variables beside those that name
    the start. Raises RunError.

    job: the job's name where nothing else names it. A run that nothing names gets a name of its own.
    """
    folder = os.path.abspath(folder)
    try:
        os.makedirs(folder)
        os.chmod(folder, 0o1777)  # noqa: S103  the container's users are others
    except FileExistsError:
        if not os.path.isdir(folder):
            raise RunError(f"the folder of events {folder} is no directory") from None
    except OSError as error:
        raise RunError(f"the folder of events {folder} cannot be made: {error.strerror}") from error
    who = identity(environ)
    named = {
        ENV_FOLDER: folder,
        ENV_JOB: who.job or job,
        ENV_RUN: who.run or f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}",
        ENV_ATTEMPT: str(who.attempt),
        ENV_NODE: who.node,
        ENV_RANK: "" if who.rank is None else str(who.rank),
    }
    before = {name: environ[name] for name in named if name in environ}
    environ.update({name: text for name, text in named.items() if text})
    binds = [Bind(folder, FOLDER, made=True, inert=True), Bind(startup_events.__file__, PROGRAM, writable=False)]
    try:
        yield binds, [f"{ENV_FOLDER}={FOLDER}"]
    finally:
        for name in named:
            environ.pop(name, None)
        environ.update(before)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Those of one start; half a line at the end is one that is still being written."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("mono_ns"), int)]


def ready_at(folder: Path) -> int | None:
    """Time at which the job was ready, in nanoseconds of the monotonic clock: at the first `ready`, else when its first
    step ended; None while it is not.
    """
    events = read_events(folder)
    for stage, event in (("ready", "instant"), ("first_step", "end")):
        when = [one["mono_ns"] for one in events if (one.get("stage"), one.get("event")) == (stage, event)]
        if when:
            return int(min(when))
    return None


def stage_seconds(events: Sequence[Mapping[str, Any]], begun: int, until: int) -> dict[str, float]:
    """Seconds of each stage between these two: the time in which any of its spans was open."""
    ends = {one["span"]: one["mono_ns"] for one in events if one.get("event") == "end" and "span" in one}
    begins = [one for one in events if one.get("event") == "begin" and one.get("stage") in STAGES]
    reached, covered = dict.fromkeys(STAGES, begun), dict.fromkeys(STAGES, 0)
    for one in sorted(begins, key=lambda one: int(one["mono_ns"])):
        stage, end = one["stage"], min(int(ends.get(one.get("span"), until)), until)
        covered[stage] += max(0, end - max(int(one["mono_ns"]), reached[stage]))
        reached[stage] = max(reached[stage], end)
    return {stage: length / 1e9 for stage, length in covered.items() if length}
