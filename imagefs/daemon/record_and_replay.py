"""Sessions of starts: each is recorded, what earlier ones taught is fetched ahead, and in the end both are judged.

A *start* begins when an image is attached and ends when the job says so, or is taken to be ready. While it lasts its
first touches are recorded and the image's plan is replayed: the hot device from its first block to its last, then
whatever else the plan names. Afterwards the rest of the image is fetched at a bounded rate, so that in the end it is
local. A dependency snapshot that has no plan yet is fetched whole at once: of what was installed for one job that job
touches much, and import by import, each of which waits for the one before, it takes many times as long. Of an image
that has no plan yet everything is fetched, too, so that a first start does not take longer than fetching the whole
image: first what starts of other workloads of the image touched, then in an order that follows its readers. A read that
waits goes first.

A read does not say for which mount it is. So what is recorded of a start that others join holds their reads, too. Those
of the same image and workload are starts like it: the record counts as one, of all of them together, and ends when the
first of them has started; by then it holds all that this one touched. Any other use makes a record that counts for no
plan.

A trace is made of a record in `imagefs.daemon.helpers`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from imagefs.blocks.prefetch import following
from imagefs.blocks.source import PackSource
from imagefs.blocks.store import BlockDevice, BlockStore, Reads
from imagefs.daemon.documents import Documents
from imagefs.daemon.helpers import RecordedStart, TraceMaker
from imagefs.daemon.start_events import Moment, StartEvents
from imagefs.daemon.state import Attachment, DaemonState
from imagefs.format.index import BLOCK
from imagefs.format.trace import Plan
from imagefs.settings import DaemonSettings, client_marker
from imagefs.trace.recorder import Recorder, score
from stripefs.background import contain
from stripefs.errors import StripefsError
from stripefs.stalls import Stalls
from stripefs.startup_events import ProcessIdentity, Writer, identity

__all__ = ["Sessions"]

_log = logging.getLogger(__name__)
HOT = "hot"
"""The tag of the device that holds what a start touches first, in that order."""

_STARTED = ("ready", "marker")
"""Ends of a start that came to its end; others were broken off, or waited for no longer."""

_JUDGED = ("planned_bytes", "touched_bytes", "both_bytes")
"""The results of `score` that can be added up."""

_LOOK_WITHIN = 0.1
"""Seconds for which a first start waits to learn what other workloads touched; what it reads itself comes meanwhile."""

_BACKGROUND = 2
"""Ranges at once in the background: enough for the bounded rate, and little in the way of a reader."""

_TURN, _TURN_WITHIN = 1.0, 30.0
"""Seconds of the background's rate that one image gets before it is the next one's turn; and what that may take."""

_AGAIN = 30.0
"""Seconds before a background that met an error goes on."""


@dataclass(slots=True)
class _Session:
    """A start under way, or over. `recorder` is None once it is over, or where it is not recorded.

    planned: the blocks that are fetched ahead, by device. waited_before: how long readers of this daemon had waited for
    the store before, in milliseconds.
    """

    attachment: Attachment
    devices: Sequence[BlockDevice]
    begun: float
    events: StartEvents
    recorder: Recorder | None = None
    complete: bool = False
    """Tells whether one that joined has started, so that nothing is added to the record any more."""
    shared: str = ""
    """The reason for which the record may hold reads of others: its trace then counts for no plan."""
    fetching: trio.CancelScope = field(default_factory=trio.CancelScope)
    over: trio.Event = field(default_factory=trio.Event)
    planned: dict[str, set[int]] = field(default_factory=dict)
    fetching_ahead: bool = True
    """Tells whether blocks that this start will touch are still on their way, or not yet asked for."""
    waited_before: float = 0.0
    judged: dict[str, Any] = field(default_factory=dict)
    unread: bool = False
    """Tells whether somebody wants to know of the first byte, and none has come yet."""
    read_before: list[Reads] = field(default_factory=list)
    """The counts of each device when this start began."""


class Sessions:
    """The starts of all attachments of a daemon."""

    def __init__(self, settings: DaemonSettings, blocks: BlockStore, documents: Documents) -> None:
        self._settings = settings
        self._blocks = blocks
        self._documents = documents
        self.traces = TraceMaker(settings)
        self._starts: dict[str, _Session] = {}  # by attachment
        self._writer = _writer(settings.events) if settings.events else None
        self._unread: set[str] = set()  # devices of starts that are `unread`, and maybe of some that were
        self._stalls = Stalls()
        blocks.stalled = self._stalled
        self._nursery: trio.Nursery
        self._background = trio.Lock()
        self._ended: Counter[str] = Counter()
        self._judged: Counter[str] = Counter()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    # -- recording -----------------------------------------------------------------------------------------------

    def why_unrecorded(self, attachment: Attachment, devices: Sequence[BlockDevice], state: DaemonState) -> str:
        """The reason for which a recording of this start could not be complete, "" when it can. The attachment is not
        in `state` yet.
        """
        if any(device.complete for device in devices):
            return "the image is here already, so the kernel reads it without asking"
        if any(device.index in state.pages or device.index in state.known for device in attachment.devices):
            return "the image was used before, and the kernel may have some of it in memory"
        return ""

    def record_read(self, index: str, offset: int, length: int) -> None:
        """A read that reached us."""
        now = trio.current_time()
        for start in self._starts.values():
            if start.recorder is not None and not start.complete:
                for number, device in enumerate(start.devices):
                    if device.digest == index:
                        start.recorder.touch(number + 1, offset, length, now - start.begun)

    def note_first_byte(self, index: str) -> None:
        """A read of this device was answered."""
        if index not in self._unread:
            return
        for start in self._starts.values():
            if start.unread and any(device.digest == index for device in start.devices):
                start.unread = False
                start.events.instant("first byte")
        self._unread = {device.digest for one in self._starts.values() if one.unread for device in one.devices}

    def _stalled(self, index: str, waited: float, cause: str, host: str) -> None:
        """A read of this device has waited for long."""
        now = trio.current_time()
        if self._stalls.ended(now - waited, now, cause, host):
            told = {"cause": cause} | ({"host": host} if host else {})
            for start in self._starts.values():
                if not start.over.is_set() and any(device.digest == index for device in start.devices):
                    start.events.span("stall", Moment(waited), told, kind="wait")

    def resolved(self, attachment: Attachment, begun: Moment, ended: Moment) -> None:
        """The documents of its image were found between these."""
        if (start := self._starts.get(attachment.id)) is not None:
            start.events.span("resolve", begun, ended=ended, parent=str(attachment.events.get("parent", "")))

    def take_events(self, attachment: Attachment) -> dict[str, Any]:
        """The events of its start that its client is to write; each is answered once."""
        start = self._starts.get(attachment.id)
        return start.events.take_events() if start is not None else {}

    # -- the course of a start -----------------------------------------------------------------------------------

    def begin(
        self, attachment: Attachment, devices: Sequence[BlockDevice], source: PackSource, *, typical: bool = True
    ) -> None:
        """Fetch ahead, and record it unless the attachment says why not; its client learns later where the image is.

        typical: it is a start like others of its image and workload.
        """
        self.note_other_use((device.digest for device in devices), like=attachment if typical else None)
        start = self._add(attachment, devices)
        if not attachment.unrecorded:
            start.recorder = Recorder([device.size for device in devices])
        self._begin_fetching(attachment, start, source)

    def _begin_fetching(self, attachment: Attachment, start: _Session, source: PackSource) -> None:
        what = f"fetching ahead of {attachment.name}"
        self._nursery.start_soon(contain, what, self._fetch, attachment, start, source)

    def note_other_use(self, digests: Iterable[str], like: Attachment | None = None) -> None:
        """Somebody else reads these devices from now on; a start of the image and workload of `like`, if given."""
        mine = set(digests)
        for other in self._starts.values():
            if other.over.is_set() or (like is not None and _same_workload(like, other.attachment)):
                continue
            if any(device.digest in mine for device in other.devices):
                other.shared = "another use of its image began while it was recorded"

    def forget(self, attachment: Attachment) -> None:
        """Make no trace of it after all."""
        if (start := self._starts.get(attachment.id)) is not None:
            start.recorder = None
            self.note_other_use(device.digest for device in start.devices)

    def resume(self, attachment: Attachment, devices: Sequence[BlockDevice], source: PackSource) -> None:
        """Go on where a worker ended; what it had recorded is gone."""
        start = self._add(attachment, devices)
        if attachment.ready:
            start.over.set()
        self._begin_fetching(attachment, start, source)

    def finish(self, attachment: Attachment, how: str) -> None:
        """The start is over: judge what was fetched ahead, turn what was recorded into a trace."""
        start = self._starts.get(attachment.id)
        if start is None:
            return  # its devices could not be served yet
        start.over.set()
        self._ended[how] += 1
        if how in _STARTED:
            for other in self._starts.values():
                other.complete = other.complete or (
                    other.begun <= start.begun and _same_workload(attachment, other.attachment)
                )
        start.judged = {"seconds": round(trio.current_time() - start.begun, 3), "ended_by": how}
        start.judged["waited_ms"] = round(self._blocks.waited_ms - start.waited_before, 1)
        start.unread = False
        if how == "marker" and attachment.ready_file != client_marker(self._settings.runtime, attachment.id):
            start.events.instant("", stage="ready")
        if start.events.on:
            counts = [
                device.reads.since(before) for device, before in zip(start.devices, start.read_before, strict=True)
            ]
            start.events.instant(
                "on demand",
                bytes=sum(one.missed_bytes for one in counts),
                hits=sum(one.hits for one in counts),
                misses=sum(one.misses for one in counts),
                wait_ns=int(sum(one.waited for one in counts) * 1e9),
            )
        if start.recorder is None:
            return
        touched = {device.digest: start.recorder.touched_blocks(n) for n, device in enumerate(start.devices, 1)}
        by_digest = {device.digest: device.index for device in start.devices}
        start.judged |= score(start.planned, touched, lambda digest, block: by_digest[digest].place(block).length)
        self._judged.update({name: start.judged[name] for name in _JUDGED})
        raw, start.recorder = start.recorder.to_bytes(), None
        recorded = RecordedStart(raw, how, start.judged["seconds"], start.shared)
        what = f"learning from the start of {attachment.name}"
        self._nursery.start_soon(contain, what, self.traces.make_trace, attachment, recorded)
        _log.info("the start of %s is over (%s): %s", attachment.name, how, start.judged)

    def drop(self, attachment: Attachment) -> None:
        """Release its blocks, which are not needed any more."""
        if (start := self._starts.pop(attachment.id, None)) is not None:
            start.fetching.cancel()

    def close(self) -> None:
        """Wait a moment until all events are written."""
        if self._writer is not None:
            self._writer.close()

    def figures(self, attachment: Attachment) -> dict[str, Any]:
        start = self._starts.get(attachment.id)
        if start is None:
            return {}
        return {
            "recording": start.recorder is not None and not (start.shared or start.complete),
            "unrecorded": attachment.unrecorded or start.shared,
            "planned_blocks": sum(map(len, start.planned.values())),
            "fetching_ahead": start.fetching_ahead and not start.over.is_set(),
            "start": start.judged,
        }

    def snapshot(self) -> dict[str, Any]:
        """The number of starts that ended, by their end; and the bytes of those that were recorded, all together."""
        return {"ended": dict(self._ended), **{name: self._judged[name] for name in _JUDGED}}

    def _add(self, attachment: Attachment, devices: Sequence[BlockDevice]) -> _Session:
        events = StartEvents(attachment, self._writer)
        start = _Session(attachment, devices, trio.current_time(), events, waited_before=self._blocks.waited_ms)
        self._starts[attachment.id] = start
        if events.on:
            start.unread = True
            start.read_before = [dataclasses.replace(device.reads) for device in devices]
            self._unread.update(device.digest for device in devices)
        return start

    async def _fetch(self, attachment: Attachment, start: _Session, source: PackSource) -> None:
        """Fetch what the start will touch, then, when it is over, everything else."""
        with start.fetching:
            begun, came = Moment(), Counter[str]()
            for use, device in zip(attachment.devices, start.devices, strict=True):
                if use.tag == HOT:
                    came += await self._fetch_ahead(start, device, range(device.index.blocks))
            if (plan := await self._plan(attachment, source)) is not None:
                for number, device in enumerate(start.devices, 1):
                    came += await self._fetch_ahead(start, device, _planned(plan, number, device))
            if start.planned:
                start.events.span("hot device", begun, {name: came[name] for name in ("bytes", "hits", "misses")})
            if plan is not None:
                pass  # the rest waits until the start is over
            elif attachment.snapshot and self._settings.background_rate:
                for device in start.devices:
                    await self._fetch_ahead(start, device, range(device.index.blocks))
            elif self._settings.background_rate:
                await self._fetch_following(start, source)
            start.fetching_ahead = False
            await start.over.wait()
            while self._settings.background_rate and not await self._fetch_rest(start):
                await trio.sleep(_AGAIN)

    async def _fetch_ahead(self, start: _Session, device: BlockDevice, blocks: Iterable[int]) -> Counter[str]:
        """The bytes that came, and the blocks that were here and that were not."""
        wanted = list(blocks)
        if not wanted:
            return Counter()
        start.planned.setdefault(device.digest, set()).update(wanted)
        report = await device.fetch(wanted, at_once=self._settings.fetches)
        _log.info("fetched ahead of %s: %s", device.digest[:12], report)
        return Counter(bytes=report.bytes, hits=report.skipped + report.copied, misses=report.blocks + report.failed)

    async def _fetch_following(self, start: _Session, source: PackSource) -> None:
        """Fetch what readers may come to, until the start is over: everything, as fast as the way to the store allows,
        first what starts of other workloads touched. It counts for no prediction."""
        likely: list[deque[int]] = [deque() for _ in start.devices]
        looked = trio.Event()

        async def look() -> None:
            image, workload = start.attachment.image, start.attachment.workload
            for plan in await self._documents.other_plans(image, workload, self.traces.folder, source):
                for number, (device, ahead) in enumerate(zip(start.devices, likely, strict=True), 1):
                    ahead.extend(_planned(plan, number, device))
            looked.set()

        async def fetch() -> None:
            with trio.move_on_after(_LOOK_WITHIN):
                await looked.wait()
            for device, ahead in zip(start.devices, likely, strict=True):
                order = following(device.index.blocks, partial(getattr, device, "last_read"), ahead)
                await device.fetch(order, at_once=self._settings.fetches)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            nursery.start_soon(fetch)
            await start.over.wait()
            nursery.cancel_scope.cancel()

    async def _fetch_rest(self, start: _Session) -> bool:
        """Bring the whole image here, in turns with others, since the rate is that of all; False when some lacks."""
        rate = self._settings.background_rate
        size = max(2 * _BACKGROUND, int(rate * _TURN) // BLOCK)
        for device in start.devices:
            for first in range(0, device.index.blocks, size):
                blocks = range(first, min(first + size, device.index.blocks))
                async with self._background:
                    with trio.move_on_after(_TURN_WITHIN):
                        report = await device.fetch(blocks, at_once=_BACKGROUND, rate=rate)
                        if report.full:
                            return True  # there is no room for more
                        if not report.failed:
                            continue
                return False
        return True

    async def _plan(self, attachment: Attachment, source: PackSource) -> Plan | None:
        """The plan of this image and workload; None when there is none, or it cannot be had."""
        try:
            return await self._documents.plan(attachment.image, attachment.workload, self.traces.folder, source)
        except StripefsError as error:
            _log.warning("the plan of %s cannot be had, it starts without: %s", attachment.name, error)
            return None


def _writer(folder: str) -> Writer:
    """A daemon that a job has started has that job's variables, and serves others."""
    return Writer(folder, ProcessIdentity(node=identity().node), "imagefs")


def _same_workload(one: Attachment, other: Attachment) -> bool:
    """Tells whether both are starts of the same workload."""
    return (one.image, one.workload) == (other.image, other.workload)


def _planned(plan: Plan, number: int, device: BlockDevice) -> Iterable[int]:
    """The blocks of the device with this number, in order; a plan may name others, for any reason."""
    for run in plan.runs:
        if run.device == number:
            yield from range(run.first, min(run.first + run.blocks, device.index.blocks))
