"""Helper programs of the daemon: their runner, traces of recorded starts, and the removal of leftovers.

A helper is a module that takes one JSON object on standard input and may answer with one, the last line of its standard
output: a library may print before that. Neither its time nor its memory is the daemon's, and whatever it does, what the
daemon serves goes on. One that fails, prints no answer, prints without end or does not end in time is an OSError of its
caller, and its process is killed.

Of a recorded start one makes a trace and the image's plan (`imagefs.trace.finalize`). A dependency snapshot then gets a
hot device, if it has none (`imagefs.build.optimize_snapshot`), unless nothing is to be done in the background.
`imagefs.daemon.cleanup` removes what uses of images left that ended without removing it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trio

from imagefs.daemon import cleanup
from imagefs.daemon.state import Attachment
from imagefs.plane import kernel_mounts
from imagefs.settings import DaemonSettings
from stripefs.errors import ServiceDown
from stripefs.executor import Lane

__all__ = ["RecordedStart", "Sweeper", "TraceMaker", "run_helper"]

_log = logging.getLogger(__name__)
_OUTPUT = 1 << 20
"""Bytes of standard output, and of standard error, that a helper may write: answers are lines."""

_DYING = 5.0
"""Seconds until a process that was killed is left to itself: one that waits for a hung disk cannot end."""


async def run_helper(
    module: str, facts: Mapping[str, Any], within: float, descriptors: Sequence[int] = ()
) -> dict[str, Any]:
    """The answer of `python -m module`, {} where it wrote nothing; killed after `within` seconds. Raises OSError.

    descriptors: those that it inherits, under their numbers.
    """
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = bytearray(), bytearray()
    try:
        with trio.move_on_after(within) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_feed, process.stdin, json.dumps(facts).encode())
                nursery.start_soon(_read, process.stdout, output, process)
                nursery.start_soon(_read, process.stderr, errors, process)
                await process.wait()
    finally:
        await _end(process)
    if limit.cancelled_caught:
        raise OSError(f"{module} did not end within {within:g} s")
    if process.returncode:
        raise OSError(_text(errors) or f"{module} ended with code {process.returncode}")
    lines = _text(output).splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise OSError(f"{module} gave no answer but {lines[-1][:200]!r}")
    return answer


async def _feed(pipe: trio.abc.SendStream, data: bytes) -> None:
    async with pipe:
        try:
            await pipe.send_all(data)
        except trio.BrokenResourceError:  # it ended without reading; its code says why
            return


async def _read(pipe: trio.abc.ReceiveStream, data: bytearray, process: trio.Process) -> None:
    async with pipe:
        while piece := await pipe.receive_some():
            data += piece
            if len(data) > _OUTPUT:
                _log.warning("a helper program writes without end and is killed: %s", _text(data[:200]))
                del data[200:]
                process.kill()
                return


async def _end(process: trio.Process) -> None:
    if process.poll() is None:
        process.kill()
        with trio.move_on_after(_DYING, shield=True):
            await process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            await trio.aclose_forcefully(pipe)


def _text(output: bytes | bytearray) -> str:
    return output.decode("utf-8", "replace").strip()


PROGRAMS = 2
"""Programs that run at once: each takes a processor and memory of the order of the image's metadata."""

MOST_WAITING = 64
"""Starts that may wait for their traces; those of one image are alike, so what is left out is little."""

WITHIN = 1800.0
"""Seconds that a program may take."""

_COPIED_WITHIN = 5.0
"""Seconds for the copy of a mount, which reads nothing."""

_OLD = 3600.0
"""Seconds after which nobody makes a trace of a record any more."""


class RecordedStart(NamedTuple):
    """A start that ended. raw: of its `Recorder`; ended_by, seconds: as in a trace; reason: why it is not complete."""

    raw: bytes
    ended_by: str
    seconds: float
    reason: str


class TraceMaker:
    """Makes traces of the recorded starts of one host. `folder` keeps records, and traces and plans that the store does
    not take."""

    def __init__(self, settings: DaemonSettings) -> None:
        self.folder = Path(settings.cache) / "traces"
        self._programs = trio.Semaphore(PROGRAMS)
        self._waiting = 0
        self._improves = settings.background_rate > 0
        self._compression = settings.compression
        self._lane = Lane("traces", 2)
        self._mounts = Lane("mounts of starts", 2)

    async def tidy(self) -> None:
        """Remove records of which no trace was made, because a daemon was killed meanwhile."""
        try:
            await self._lane.run("removing old records", _remove_old, self.folder)
        except OSError as error:
            _log.warning("old records stay in %s: %s", self.folder, error)

    async def make_trace(self, attachment: Attachment, recorded: RecordedStart) -> None:
        """Learn from a start that is over."""
        if self._waiting >= MOST_WAITING:
            _log.warning("the start of %s leaves no trace: %d others wait for theirs", attachment.name, self._waiting)
            return
        self._waiting += 1
        try:
            trace = await self._make_trace(attachment, recorded)
            in_the_store = "plan_traces" in trace and trace.get("stored") != str(self.folder)
            if attachment.snapshot and attachment.base == attachment.image and in_the_store and self._improves:
                await self._add_hot_device(attachment)
        finally:
            self._waiting -= 1

    async def _make_trace(self, attachment: Attachment, recorded: RecordedStart) -> dict[str, Any]:
        """The answer about the trace that was made, {} where none was."""
        mount = await self._copy_mount(attachment)  # first: the container may end at any moment
        try:
            return await self._tell_finish(attachment, recorded, mount)
        finally:
            for descriptor in mount:
                with trio.CancelScope(shield=True):
                    await self._mounts.run("letting a mount go", os.close, descriptor)

    async def _copy_mount(self, attachment: Attachment) -> list[int]:
        """The descriptor of a mount of the image, whose page cache tells what files were read; none where there is no
        mount that can be copied."""
        if not attachment.shown:
            return []
        path, device = attachment.shown
        try:
            return [await self._mounts.run("copying a mount", kernel_mounts.copy, path, device, timeout=_COPIED_WITHIN)]
        except (OSError, ServiceDown) as error:
            _log.info("reads of %s cannot be distinguished from read-ahead: %s", attachment.name, error)
            return []

    async def _tell_finish(
        self, attachment: Attachment, recorded: RecordedStart, mount: Sequence[int]
    ) -> dict[str, Any]:
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
            "mount": mount[0] if mount else -1,
        }
        try:
            await self._lane.run("keeping a record", _keep, path, recorded.raw)
            async with self._programs:
                told = await run_helper("imagefs.trace.finalize", facts, WITHIN, mount)
        except OSError as error:
            _log.error("the start of %s leaves no trace: %s", attachment.name, error)
            await self._lane.run("removing a record", _remove, path)
            return {}
        _log.info("%s: %s", attachment.name, json.dumps(told))
        return told

    async def _add_hot_device(self, attachment: Attachment) -> None:
        try:
            async with self._programs:
                facts = {
                    "store": attachment.store,
                    "name": attachment.snapshot,
                    "compression": self._compression,
                }
                told = await run_helper("imagefs.build.optimize_snapshot", facts, WITHIN)
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


_REMOVED_WITHIN = 60.0
"""Seconds that a try may take."""

_SOON, _LATER = 2.0, 60.0
"""Seconds until what could not go yet is tried again, the first time and at most: each try is a process."""


class Sweeper:
    """For the cache and the runtime folder of `settings`."""

    def __init__(self, settings: DaemonSettings) -> None:
        self._settings = settings
        self._over: set[str] = set()  # attachments that are over, of which something may be there
        self._wake = trio.Event()
        self._lane = Lane("leftovers", 1)

    async def find(self, alive: Iterable[str]) -> None:
        """See what is there of attachments that nobody knows any more: all but those `alive`."""
        self._over |= await self._remains() - set(alive)
        self._wake.set()

    def over(self, attachment: str) -> None:
        """Note that this attachment has just ended."""
        self._over.add(attachment)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        pause = math.inf
        while True:
            with trio.move_on_after(pause) as waited:
                await self._wake.wait()
            self._wake = trio.Event()
            over, remains = set(self._over), await self._remains()
            self._over -= over - remains
            if left := over & remains:
                await self._remove(sorted(left))
                pause = min(2 * pause, _LATER) if waited.cancelled_caught else _SOON
            else:
                pause = math.inf

    async def _remove(self, ids: list[str]) -> None:
        facts = {"cache": self._settings.cache, "runtime": self._settings.runtime, "ids": ids}
        try:
            await run_helper("imagefs.daemon.cleanup", facts, _REMOVED_WITHIN)
        except OSError as error:
            for line in str(error).splitlines():
                _log.warning("what is left of uses stays: %s", line)

    async def _remains(self) -> set[str]:
        """The attachments of which something is there besides their mounts."""
        try:
            return await self._lane.run(
                "looking for what is left of uses", cleanup.find, self._settings.cache, self._settings.runtime,
                timeout=_REMOVED_WITHIN,
            )  # fmt: skip
        except (OSError, ServiceDown) as error:
            _log.warning("what is left of uses stays: %s", error)
            return set()
