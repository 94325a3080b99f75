"""Uploader of parts: one thread each, to the data host that is free, retried at another host while that can help.

A part that fails because of its host goes to another one from memory, under a name of its own, since the try that was
given up may still be writing. A failure that passes by itself (a metadata service that is away, safe mode) is tried
again after 0.1 s, 0.2 s, … 2 s. Both end `io_timeout` seconds after the first failure. Any other error ends the upload
of the part at once.

A try that makes no progress for STALL seconds is given up with its thread, whatever its client thinks.

`SendHosts` chooses the host of a part by the parts that each host has under way; it does no I/O and reads no clock.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

import trio

from stripefs.background import contain, supervise
from stripefs.errors import DraftLost, Exists, HostFailed, StoreError, StripefsError, Transient
from stripefs.executor import Lane
from stripefs.retry import Attempts, HostHealth, RetryPolicy
from stripefs.store.base import Host, Status, Store
from stripefs.units import shown
from stripefs.write.parts import HostSlots, PartUpload, UploadAttempt, send
from stripefs.write.store_ops import StoreOps

__all__ = ["ANYWHERE", "ANYWHERE_AT_ONCE", "SendHosts", "Uploader"]

ANYWHERE = ""
"""The host of a store that places files itself."""

PER_HOST = 3
"""Parts on their way to one host: one is being opened, one flows, one is being closed. A DataNode of 40 MB/s took
29 MB/s of one placed WebHDFS stream after the other."""

ANYWHERE_AT_ONCE = 8
"""Parts on their way side by side to a store that says nothing of its hosts."""


class SendHosts:
    """`known` replaces what is known of hosts; a host is chosen by `choose` and given back by `done`.

    A file in one piece is at its host for as long as its writer likes, and so takes no part's place: `begin_file` and
    `end_file` are for that. health: of the store's hosts, its own unless given; `now` is its time.
    """

    def __init__(self, health: HostHealth | None = None) -> None:
        self._health = health or HostHealth()
        self._live: list[str] = []
        self._busy: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Hosts that parts can be placed on, 0 where the store places them."""
        return len(self._live)

    @property
    def kept_bytes(self) -> int:
        """Bytes that all hosts have taken so far."""
        return self._kept.total()

    def known(self, hosts: Sequence[Host]) -> None:
        self._live = [host.name for host in hosts if host.live]

    def choose(self, taken: Set[str], now: float, *, load: int = 1) -> str | None:
        """The least busy host that is not one of `taken`; None when it is better to wait. `done` gives it back.

        Where all live hosts are taken, or rest, any other will do: a part on a host that failed a while ago, or on its
        sibling's, beats one that is nowhere. Of hosts that are equally busy the one that was sent least comes first.
        """
        if not self._live:
            return self._take(ANYWHERE, load) if self._busy[ANYWHERE] < ANYWHERE_AT_ONCE else None
        well = self._usable(now)
        candidates = [host for host in well if host not in taken] or well
        best = min(candidates, key=lambda host: (self._busy[host], self._files[host], self._sent[host]))
        return self._take(best, load) if self._busy[best] < PER_HOST else None

    def begin_file(self, now: float) -> str:
        """The host for a file in one piece: the one that has the fewest. `end_file` is to be told."""
        best = min(self._usable(now), key=lambda host: (self._files[host], self._busy[host]), default=ANYWHERE)
        self._files[best] += 1
        return best

    def end_file(self, host: str) -> None:
        self._files[host] -= 1

    def _usable(self, now: float) -> list[str]:
        return self._health.well(self._live, now) or self._live

    def _take(self, host: str, load: int) -> str:
        self._busy[host] += 1
        self._sent[host] += load
        return host

    def done(self, host: str) -> None:
        self._busy[host] -= 1

    def succeeded(self, host: str, size: int) -> None:
        """Note that the host has a part of `size` bytes."""
        self._health.worked(host)
        self.took(host, size)

    def took(self, host: str, size: int) -> None:
        """Note that the host was handed `size` bytes of a file in one piece, or has them as a part."""
        self._kept[host] += size

    def failed(self, host: str, now: float, began: float, reason: str) -> bool:
        """A part that was begun at `began` failed there. False when that tells no more than another one's failure."""
        self._errors[host] += 1
        return host == ANYWHERE or self._health.failed(host, now, reason, began)

    def snapshot(self, now: float) -> list[dict[str, Any]]:
        """Figures for `status` and metrics, of all hosts that are live or were used."""
        return [
            {
                "name": host,
                "parts": self._busy[host],
                "files": self._files[host],
                "bytes": self._kept[host],
                "errors": self._errors[host],
                "avoided_seconds": self._health.seconds(host, now),
                "reason": self._health.reason(host),
            }
            for host in sorted({*self._live, *self._busy, *self._files, *self._errors})
        ]


_log = logging.getLogger(__name__)

STALL = 20.0
"""Seconds without a byte, or for closing a file: clients give a silent host up after 5 s by themselves."""

FRESH = 30.0
"""Seconds that the list of hosts is used for."""

_THREADS = 256


class Uploader:
    """`run` must be running. Leftovers of failed tries are for gc."""

    def __init__(self, store: Store, ops: StoreOps, io_timeout: float) -> None:
        self._store = store
        self._ops = ops
        # Exists: an answer was lost, and the name is taken by us.
        self._retries = RetryPolicy(io_timeout, errors=(Transient, Exists))
        self.hosts = SendHosts(store.health)
        self.retries = 0
        self._slots: defaultdict[str, HostSlots] = defaultdict(HostSlots, {ANYWHERE: HostSlots(ANYWHERE_AT_ONCE)})
        self._queue: list[PartUpload] = []
        self._in_flight: dict[PartUpload, UploadAttempt] = {}
        self._lane = Lane("data", _THREADS)
        self._nursery: trio.Nursery | None = None
        self._pumping = False
        self._looked_at = float("-inf")
        self._looking = trio.Lock()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await supervise("watching what is sent", self._watch)
        finally:
            self._nursery = None
            for part in [*self._queue, *self._in_flight]:
                if not part.ended.is_set():
                    part.end(DraftLost("the mount is being shut down"))

    async def look(self) -> None:
        """Learn the data hosts, unless they were asked for lately. Errors show when something is sent."""
        async with self._looking:
            now = trio.current_time()
            if now - self._looked_at < FRESH or not self._store.capabilities.place:
                return
            try:
                self.hosts.known(await self._ops.call("asking for the data hosts", self._store.hosts))
            except StoreError as error:
                _log.warning("the data hosts are not known anew: %s", error)
            self._looked_at = now

    def submit(self, part: PartUpload) -> None:
        if self._nursery is None:
            part.end(DraftLost("the mount is being shut down"))
            return
        part.on_cancel = self._look_again
        self._queue.append(part)
        self._pump()

    def _look_again(self) -> None:
        """Something was given up that may wait for a host: not at once, since whoever does so is amid other changes."""
        trio.lowlevel.current_trio_token().run_sync_soon(self._pump, idempotent=True)

    def _pump(self) -> None:
        if self._nursery is None or self._pumping:  # observers of an end may submit: the loop below comes to that
            return
        self._pumping = True
        try:
            at = 0
            while at < len(self._queue):
                if not self._start(self._queue[at], self._nursery):
                    at += 1
        finally:
            self._pumping = False

    def _start(self, part: PartUpload, nursery: trio.Nursery) -> bool:
        """True if it has left the queue: it was given up, or there was a host for it."""
        if part.cancelled:
            self._queue.remove(part)
            part.end(DraftLost("it was given up before it was sent"))
            return True
        host = self.hosts.choose(part.taken, time.monotonic(), load=part.size)
        if host is None:
            return False
        self._queue.remove(part)
        part.taken.add(host)
        path, part.number = part.new_path()
        part.attempt = self._attempt(part, path, host)
        self._in_flight[part] = part.attempt
        nursery.start_soon(
            partial(contain, failed=partial(self._broken, part)),
            f"sending {shown(path)}",
            self._upload,
            part,
            part.attempt,
        )
        return True

    def _broken(self, part: PartUpload, error: BaseException) -> None:
        """A task of ours failed unexpectedly: its file is told, all others go on."""
        if not part.ended.is_set():
            part.end(StoreError(f"sending failed unexpectedly: {error!r}"))

    def _attempt(self, part: PartUpload, path: bytes, host: str) -> UploadAttempt:
        token = trio.lowlevel.current_trio_token()

        def sent() -> None:
            with contextlib.suppress(trio.RunFinishedError):  # of a thread that was left behind
                token.run_sync_soon(part.notify)

        return UploadAttempt(path, host, trio.current_time(), self._slots[host], sent)

    async def _upload(self, part: PartUpload, attempt: UploadAttempt) -> None:
        error: Exception | None = None
        try:
            part.status = await self._try(part, attempt)
        except StripefsError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001  # the border: all that a client raises reaches the writer
            error = StoreError(f"the client failed unexpectedly: {failure!r}")
        except trio.Cancelled:
            part.end(DraftLost("the mount is being shut down"))
            raise
        finally:
            attempt.cancel()  # a thread that was left behind is to stop
            self.hosts.done(attempt.host)
            del self._in_flight[part]
        if error is None:
            self.hosts.succeeded(attempt.host, part.size)
            part.end(None)
        else:
            part.taken.discard(attempt.host)
            await self._failed(part, attempt, error)
        self._pump()

    async def _try(self, part: PartUpload, attempt: UploadAttempt) -> Status:
        with attempt.scope:
            return await self._lane.run(f"sending {shown(attempt.path)}", send, self._store, part, attempt)
        raise HostFailed(f"no byte moved for {STALL:g} s", host=attempt.host, stalled=True)

    async def _failed(self, part: PartUpload, attempt: UploadAttempt, error: Exception) -> None:
        now = trio.current_time()
        host = attempt.host
        if isinstance(error, HostFailed):
            host = error.host or host  # the client may know that another one held it up
            failed = time.monotonic()
            if self.hosts.failed(host, failed, failed - (now - attempt.began), str(error)):
                self._slots[host].failed()
        if not part.cancelled:
            self._ops.stats.failed(f"{shown(attempt.path)} on {host or 'the store'}", error)
        if part.attempts is None:
            part.attempts = Attempts(self._retries, now)
        pause = part.attempts.failed(error, now)
        if part.cancelled or pause is None:
            part.end(error)
            return
        self.retries += 1
        _log.info("%s failed on %s, next try in %.1f s: %s", shown(attempt.path), attempt.host, pause, error)
        self._pump()  # others may use the host's place meanwhile
        try:
            with trio.move_on_after(pause):
                await part.given_up.wait()
        except trio.Cancelled:
            part.end(DraftLost("the mount is being shut down"))
            raise
        self._queue.insert(0, part)

    async def _watch(self) -> None:
        while True:
            await trio.sleep(1)
            now = trio.current_time()
            self._ops.stats.tick(now)
            for attempt in self._in_flight.values():
                if attempt.stalled(now, STALL):
                    attempt.scope.cancel()
