"""Sends shipments: one thread each, to the host that is free, and again elsewhere while that can help.

A part that fails because of its host goes to another one from memory, under a name of its own, since the try that was
given up may still be writing. What passes by itself (a metadata service that is away, safe mode) is tried again after
0.1 s, 0.2 s, … 2 s. Both end `io_timeout` seconds after the first failure. Any other error ends the shipment at once.

A try that makes no progress for STALL seconds is given up with its thread, whatever its client thinks.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from functools import partial

import trio

from stripefs.errors import Exists, HostFailed, StoreError, StripefsError, Transient
from stripefs.executor import Lane
from stripefs.store.base import Status, Store
from stripefs.supervised import contain, supervise
from stripefs.units import shown
from stripefs.write.effects import Effects
from stripefs.write.hosts import ANYWHERE, ANYWHERE_AT_ONCE, SendHosts
from stripefs.write.refusals import DraftLost
from stripefs.write.shipment import Attempt, Shipment, Turns, send

__all__ = ["Sender"]

_log = logging.getLogger(__name__)

STALL = 20.0
"""Seconds without a byte, or for closing a file: clients give a silent host up after 5 s by themselves."""

FRESH = 30.0
"""Seconds that the list of hosts is used for."""

_THREADS = 256


class Sender:
    """`run` must be running. What failed tries may leave is for gc."""

    def __init__(self, store: Store, effects: Effects, io_timeout: float) -> None:
        self._store = store
        self._effects = effects
        self._io_timeout = io_timeout
        self.hosts = SendHosts(store.health)
        self.retries = 0
        self._turns: defaultdict[str, Turns] = defaultdict(Turns, {ANYWHERE: Turns(ANYWHERE_AT_ONCE)})
        self._queue: list[Shipment] = []
        self._flying: dict[Shipment, Attempt] = {}
        self._lane = Lane("data", _THREADS)
        self._nursery: trio.Nursery | None = None
        self._pumping = False
        self._looked_at = float("-inf")
        self._looking = trio.Lock()

    @property
    def flying(self) -> int:
        return len(self._flying)

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
            for shipment in [*self._queue, *self._flying]:
                if not shipment.ended.is_set():
                    shipment.end(DraftLost("the mount is being shut down"))

    async def look(self) -> None:
        """Learn the data hosts, unless they were asked for lately. What went wrong shows when something is sent."""
        async with self._looking:
            now = trio.current_time()
            if now - self._looked_at < FRESH or not self._store.capabilities.place:
                return
            try:
                self.hosts.known(await self._effects.call("asking for the data hosts", self._store.hosts))
            except StoreError as error:
                _log.warning("the data hosts are not known anew: %s", error)
            self._looked_at = now

    def submit(self, shipment: Shipment) -> None:
        if self._nursery is None:
            shipment.end(DraftLost("the mount is being shut down"))
            return
        shipment.on_cancel = self._look_again
        self._queue.append(shipment)
        self._pump()

    def _look_again(self) -> None:
        """Something was given up that may wait for a host: not at once, since whoever does so is amid other changes."""
        trio.lowlevel.current_trio_token().run_sync_soon(self._pump, idempotent=True)

    def _pump(self) -> None:
        if self._nursery is None or self._pumping:  # who hears of an end may submit: the loop below comes to that
            return
        self._pumping = True
        try:
            at = 0
            while at < len(self._queue):
                if not self._leaves(self._queue[at], self._nursery):
                    at += 1
        finally:
            self._pumping = False

    def _leaves(self, shipment: Shipment, nursery: trio.Nursery) -> bool:
        """Whether it has left the queue: it was given up, or there was a host for it."""
        if shipment.cancelled:
            self._queue.remove(shipment)
            shipment.end(DraftLost("it was given up before it was sent"))
            return True
        host = self.hosts.choose(shipment.group.hosts, time.monotonic(), load=shipment.size)
        if host is None:
            return False
        self._queue.remove(shipment)
        shipment.group.hosts.add(host)
        path, shipment.number = shipment.place()
        shipment.attempt = self._attempt(shipment, path, host)
        self._flying[shipment] = shipment.attempt
        nursery.start_soon(
            partial(contain, failed=partial(self._broken, shipment)),
            f"sending {shown(path)}",
            self._fly,
            shipment,
            shipment.attempt,
        )
        return True

    def _broken(self, shipment: Shipment, error: BaseException) -> None:
        """A task of ours failed unexpectedly: its file is told, all others go on."""
        if not shipment.ended.is_set():
            shipment.end(StoreError(f"sending failed unexpectedly: {error!r}"))

    def _attempt(self, shipment: Shipment, path: bytes, host: str) -> Attempt:
        token = trio.lowlevel.current_trio_token()

        def flowed() -> None:
            with contextlib.suppress(trio.RunFinishedError):  # of a thread that was left behind
                token.run_sync_soon(shipment.stir)

        return Attempt(path, host, trio.current_time(), self._turns[host], flowed)

    async def _fly(self, shipment: Shipment, attempt: Attempt) -> None:
        error: Exception | None = None
        try:
            shipment.status = await self._try(shipment, attempt)
        except StripefsError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001  # the border: whatever a client raises reaches the writer
            error = StoreError(f"the client failed unexpectedly: {failure!r}")
        except trio.Cancelled:
            shipment.end(DraftLost("the mount is being shut down"))
            raise
        finally:
            attempt.cancel()  # a thread that was left behind is to stop
            self.hosts.done(attempt.host)
            del self._flying[shipment]
        if error is None:
            self.hosts.succeeded(attempt.host, shipment.size)
            shipment.end(None)
        else:
            shipment.group.hosts.discard(attempt.host)
            await self._failed(shipment, attempt, error)
        self._pump()

    async def _try(self, shipment: Shipment, attempt: Attempt) -> Status:
        with attempt.scope:
            return await self._lane.run(f"sending {shown(attempt.path)}", send, self._store, shipment, attempt)
        raise HostFailed(f"no byte moved for {STALL:g} s", host=attempt.host, stalled=True)

    async def _failed(self, shipment: Shipment, attempt: Attempt, error: Exception) -> None:
        now = trio.current_time()
        host = attempt.host
        if isinstance(error, HostFailed):
            host = error.host or host  # the client may know that another one held it up
            failed = time.monotonic()
            if self.hosts.failed(host, failed, failed - (now - attempt.began), str(error)):
                self._turns[host].failed()
        if not shipment.cancelled:
            self._effects.figures.failed(f"{shown(attempt.path)} on {host or 'the store'}", error)
        if shipment.first_failure is None:
            shipment.first_failure = now
        pause = shipment.backoff.failed(now)
        passing = isinstance(error, (Transient, Exists))  # Exists: an answer was lost, and the name is taken by us
        if shipment.cancelled or not passing or now + pause > shipment.first_failure + self._io_timeout:
            shipment.end(error)
            return
        self.retries += 1
        _log.info("%s failed on %s, next try in %.1f s: %s", shown(attempt.path), attempt.host, pause, error)
        self._pump()  # others may use the host's place meanwhile
        try:
            with trio.move_on_after(pause):
                await shipment.given_up.wait()
        except trio.Cancelled:
            shipment.end(DraftLost("the mount is being shut down"))
            raise
        self._queue.insert(0, shipment)

    async def _watch(self) -> None:
        while True:
            await trio.sleep(1)
            now = trio.current_time()
            self._effects.figures.tick(now)
            for attempt in self._flying.values():
                if attempt.stalled(now, STALL):
                    attempt.scope.cancel()
