"""What becomes of a recorded start, in processes of their own: neither their time nor their memory is the daemon's.

The record becomes a trace, and the image's plan is made anew (`imagefs.trace.finish`). A dependency snapshot then gets
a hot device, if it has none (`imagefs.deps.hot`), unless nothing is to be done in the background.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

import trio

from imagefs.daemon.helpers import run_helper
from imagefs.daemon.state import Attachment
from imagefs.settings import DaemonSettings
from stripefs.executor import Lane

__all__ = ["Learning", "Recorded"]

_log = logging.getLogger(__name__)

PROGRAMS = 2
"""Programs that run at once: each takes a processor and memory of the order of the image's metadata."""

MOST_WAITING = 64
"""Starts that may wait for their traces; those of one image are alike, so what is left out is little."""

WITHIN = 1800.0
"""Seconds that a program may take."""

_OLD = 3600.0
"""Seconds after which nobody makes a trace of a record any more."""


class Recorded(NamedTuple):
    """A start that ended. raw: of its `Recorder`; ended_by, seconds: as in a trace; reason: why it is not complete."""

    raw: bytes
    ended_by: str
    seconds: float
    reason: str


class Learning:
    """Of the starts of one host. `folder` keeps records, and traces and plans that the store does not take."""

    def __init__(self, settings: DaemonSettings) -> None:
        self.folder = Path(settings.cache) / "traces"
        self._programs = trio.Semaphore(PROGRAMS)
        self._waiting = 0
        self._improves = settings.background_rate > 0
        self._lane = Lane("traces", 2)

    async def tidy(self) -> None:
        """Remove records of which no trace was made, because a daemon was killed meanwhile."""
        try:
            await self._lane.run("removing old records", _remove_old, self.folder)
        except OSError as error:
            _log.warning("old records stay in %s: %s", self.folder, error)

    async def learn(self, attachment: Attachment, recorded: Recorded) -> None:
        """Learn from a start that is over."""
        if self._waiting >= MOST_WAITING:
            _log.warning("the start of %s leaves no trace: %d others wait for theirs", attachment.name, self._waiting)
            return
        self._waiting += 1
        try:
            trace = await self._make_trace(attachment, recorded)
            in_the_store = "plan_traces" in trace and trace.get("stored") != str(self.folder)
            if attachment.snapshot and attachment.base == attachment.image and in_the_store and self._improves:
                await self._improve(attachment)
        finally:
            self._waiting -= 1

    async def _make_trace(self, attachment: Attachment, recorded: Recorded) -> dict[str, Any]:
        """What is said of the trace that was made, {} where none was."""
        path = self.folder / f"{attachment.id}.raw"
        facts = {
            "raw": str(path),
            "folder": str(self.folder),
            "store": attachment.store,
            "image": attachment.image,
            "metadata": attachment.metadata,
            "workload": attachment.workload,
            "node": platform.node(),
            "started": attachment.since,
            "seconds": recorded.seconds,
            "ended_by": recorded.ended_by,
            "reason": recorded.reason,
        }
        try:
            await self._lane.run("keeping a record", _keep, path, recorded.raw)
            async with self._programs:
                told = await run_helper("imagefs.trace.finish", facts, WITHIN)
        except OSError as error:
            _log.error("the start of %s leaves no trace: %s", attachment.name, error)
            await self._lane.run("removing a record", _remove, path)
            return {}
        _log.info("%s: %s", attachment.name, json.dumps(told))
        return told

    async def _improve(self, attachment: Attachment) -> None:
        try:
            async with self._programs:
                facts = {"store": attachment.store, "name": attachment.snapshot}
                told = await run_helper("imagefs.deps.hot", facts, WITHIN)
        except OSError as error:
            _log.info("%s gets no hot device: %s", attachment.name, error)
        else:
            _log.info("%s: %s", attachment.name, told.get("done"))


def _remove_old(folder: Path) -> None:
    for path in folder.glob("*.raw"):
        if time.time() - path.stat().st_mtime > _OLD:
            path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the disk may be what failed; it is swept later
        path.unlink(missing_ok=True)


def _keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
