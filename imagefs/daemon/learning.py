"""What becomes of a recorded start, in processes of their own: neither their time nor their memory is the daemon's.

The record becomes a trace, and the image's plan is made anew (`imagefs.trace.finish`). A dependency snapshot then gets
a hot device, if it has none (`imagefs.deps.hot`), unless nothing is to be done in the background.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import sys
import time
from pathlib import Path
from typing import Any

import trio

from imagefs.daemon.state import Attachment
from imagefs.settings import DaemonSettings

__all__ = ["Learning"]

_log = logging.getLogger(__name__)

_OLD = 3600.0
"""Seconds after which nobody makes a trace of a record any more."""


class Learning:
    """Of the starts of one host. `folder` keeps records, and traces and plans that the store does not take."""

    def __init__(self, settings: DaemonSettings) -> None:
        self.folder = Path(settings.cache) / "traces"
        self._improves = settings.background_rate > 0

    async def tidy(self) -> None:
        """Remove records of which no trace was made, because a daemon was killed meanwhile."""
        try:
            await trio.to_thread.run_sync(_remove_old, self.folder)
        except OSError as error:
            _log.warning("old records stay in %s: %s", self.folder, error)

    async def learn(self, attachment: Attachment, raw: bytes, how: str, seconds: float) -> None:
        """From a start that is over. raw: of its `Recorder`; how, seconds: as in a trace."""
        trace = await self._make_trace(attachment, raw, how, seconds)
        in_the_store = "plan_traces" in trace and trace["stored"] != str(self.folder)
        if attachment.snapshot and attachment.base == attachment.image and in_the_store and self._improves:
            await self._improve(attachment)

    async def _make_trace(self, attachment: Attachment, raw: bytes, how: str, seconds: float) -> dict[str, Any]:
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
            "seconds": seconds,
            "ended_by": how,
        }
        try:
            await trio.to_thread.run_sync(_keep, path, raw)
            told = await _run("imagefs.trace.finish", facts)
        except OSError as error:
            _log.error("the start of %s leaves no trace: %s", attachment.name, error)
            await trio.to_thread.run_sync(_remove, path)
            return {}
        _log.info("%s: %s", attachment.name, told)
        made: dict[str, Any] = json.loads(told)
        return made

    async def _improve(self, attachment: Attachment) -> None:
        facts = {"store": attachment.store, "name": attachment.snapshot}
        try:
            told = await _run("imagefs.deps.hot", facts)
        except OSError as error:
            _log.info("%s gets no hot device: %s", attachment.name, error)
        else:
            _log.info("%s: %s", attachment.name, told)


async def _run(program: str, facts: dict[str, Any]) -> str:
    """What a module says that is run as a program. Raises OSError, also with what it says when it fails."""
    done = await trio.run_process(
        [sys.executable, "-P", "-m", program],
        stdin=json.dumps(facts).encode(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        raise OSError(_text(done.stderr))
    return _text(done.stdout)


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()


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
