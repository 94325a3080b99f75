"""Processes of the product on a virtual clock: one thread of all moves at a time, in an order that follows from a seed.

An activity is a thread that runs until it waits for the clock or for another activity. `Simulation.run` lets the one
go on whose time comes first, and the clock stands still meanwhile, however long that takes. So no time-out of the
product is real, and a call that is given up goes on in its thread, as it does in the product, until its turn comes.

`patched` gives this clock to the product: to trio, to the threads of lanes, to locks between threads, and to what asks
for the time. Random choices of the product follow from the seed then.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import trio

from stripefs import executor, retry
from stripefs.format import reserved_names
from stripefs.write import file_lock, parts, store_ops, stream_upload, uploader

__all__ = ["Process", "Simulation"]


class Process:
    """One process with its trio loop and its threads. All of them stand still until `stopped_until`."""

    def __init__(self) -> None:
        self.stopped_until = -math.inf
        self.slept = 0.0
        """Seconds that trio's clock has missed: it stands still while a machine sleeps."""
        self.loop: _Activity | None = None


class _Activity:
    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process = process
        self.work = work
        self.turn = 0  # of the events that are scheduled for it only those of this turn count
        self.gate = _closed_gate()
        self.thread: threading.Thread | None = None
        self.ended = False


def _closed_gate() -> threading.Lock:
    """A lock that is held: each release lets one thread that acquires it pass."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Simulation:
    """`now` in seconds since its start. All methods but `run` are for activities, or for before `run`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.abandoned = 0
        """Calls that were given up by their callers and go on in their threads."""
        self._events: list[tuple[float, int, Callable[[], None] | tuple[_Activity, int]]] = []
        self._numbers = itertools.count()
        self._running: _Activity | None = None
        self._back = _closed_gate()
        self._error: BaseException | None = None
        self._stopped: dict[Process, list[tuple[_Activity, int]]] = {}

    # -- calls of activities -----------------------------------------------------------------------------------------

    def at(self, seconds: float, effect: Callable[[], None]) -> None:
        """Call effect(), which waits for nothing, so many seconds from now."""
        self._schedule(self.now + seconds, effect)

    def begin(self, process: Process, work: Callable[[], None], seconds: float = 0.0) -> None:
        """A new thread of this process runs work() so many seconds from now."""
        activity = _Activity(process, work)
        self._schedule(self.now + seconds, (activity, activity.turn))

    def run_trio(self, process: Process, main: Callable[[], Awaitable[None]]) -> None:
        """As `trio.run`, in an activity of this process that does nothing else."""
        process.loop = self._running
        try:
            trio.run(main, clock=_TrioClock(self, process))
        finally:
            process.loop = None

    def pause(self, seconds: float) -> None:
        """For so many seconds, whatever wakes this activity."""
        until = self.now + seconds
        while self.now < until:
            self.wait_until(until)

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Until done(), which becomes true before `wake` is called for this activity."""
        while not done():
            self.wait_until(math.inf)

    @property
    def activity(self) -> _Activity:
        """The one that calls."""
        assert self._running is not None
        return self._running

    def wake(self, activity: _Activity) -> None:
        """Let it look again for the thing that it waits for."""
        self._schedule(self.now, (activity, activity.turn))

    def wait_until(self, until: float) -> None:
        """Until then, or until `wake` is called for this activity, whichever is first."""
        activity = self.activity
        if until < math.inf:
            self._schedule(until, (activity, activity.turn))
        self._back.release()
        activity.gate.acquire()

    def _schedule(self, when: float, event: Callable[[], None] | tuple[_Activity, int]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    # -- the scheduler -----------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is to happen any more, or until() is true. Raises what an activity or an effect has raised."""
        while self._events and not until():
            when, _, event = heapq.heappop(self._events)
            self.now = max(self.now, when)
            if not isinstance(event, tuple):
                event()
                continue
            activity, turn = event
            if activity.ended or activity.turn != turn:
                continue
            stopped_until = activity.process.stopped_until
            if stopped_until == math.inf:
                self._stopped.setdefault(activity.process, []).append(event)
            elif stopped_until > self.now:
                self._schedule(stopped_until, event)
            else:
                self._run(activity)

    def run_for(self, seconds: float) -> None:
        """So many seconds."""
        over: list[bool] = []
        self.at(seconds, lambda: over.append(True))
        self.run(lambda: bool(over))

    def resume(self, process: Process) -> None:
        """A process that was to stand still for ever goes on."""
        process.stopped_until = -math.inf
        for event in self._stopped.pop(process, ()):
            self._schedule(self.now, event)

    def _run(self, activity: _Activity) -> None:
        activity.turn += 1
        self._running = activity
        if activity.thread is None:
            activity.thread = threading.Thread(target=self._main, args=(activity,), daemon=True)
            activity.thread.start()
        else:
            activity.gate.release()
        self._back.acquire()
        self._running = None
        if self._error is not None:
            raise self._error
        loop = activity.process.loop
        if loop is not None and loop is not activity:
            self.wake(loop)  # it may have been told something by `run_sync_soon`

    def _main(self, activity: _Activity) -> None:
        try:
            activity.work()
        except BaseException as error:  # noqa: BLE001  `run` raises it
            self._error = error
        finally:
            activity.ended = True
            self._back.release()

    # -- for the product ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Everything that the product writes files with goes by this clock and this seed."""
        times = SimpleNamespace(
            CLOCK_BOOTTIME=0, clock_gettime=lambda _: self.now, monotonic=lambda: self.now, time=lambda: self.now
        )
        threads = SimpleNamespace(
            Lock=lambda: _Lock(self), RLock=lambda: _Lock(self), Condition=lambda: _Condition(self)
        )
        lots = SimpleNamespace(
            token_hex=lambda size: self.rng.randbytes(size).hex(), randbelow=self.rng.randrange, random=self.rng.random
        )
        replaced: list[tuple[Any, str, object]] = [
            *((module, "time", times) for module in (store_ops, uploader, stream_upload)),
            *((module, "threading", threads) for module in (file_lock, parts, stream_upload)),
            *((module, "secrets", lots) for module in (file_lock, reserved_names)),
            (retry, "random", lots),
            (executor.Lane, "_begin", self._begin_call),
            (executor.Lane, "_leave", self._leave_call),
            (trio._core._run, "_r", self.rng),
            (trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        ]
        with contextlib.ExitStack() as stack:
            for where, name, value in replaced:
                stack.enter_context(mock.patch.object(where, name, value))
            yield

    def _begin_call(self, work: Callable[[], Any], until: float, now: float) -> executor._Call:
        """Takes the place of `Lane._begin`. A thread executes by itself the calls that it waits for."""
        call = executor._Call(work, until)
        call.future.set_running_or_notify_cancel()

        def serve() -> None:
            executor._outcome(call.work, call.future)()

        if now == -math.inf:
            serve()
        else:
            self.begin(self.activity.process, serve)
        return call

    def _leave_call(self, call: executor._Call) -> None:
        """Takes the place of `Lane._leave`: threads are never too few here."""
        self.abandoned += not call.future.done()


class _TrioClock(trio.abc.Clock):
    """Lets everything else happen until the next deadline, whenever a loop has nothing to do."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._simulation.now - self._process.slept

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if not trio.lowlevel.current_statistics().run_sync_soon_queue_size:
            later = math.nextafter(self._simulation.now, math.inf)  # rounding must not bring back the same moment
            self._simulation.wait_until(max(deadline + self._process.slept, later))
        return 0.0


class _Lock:
    """A lock between activities, which its owner may take again."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._owner: _Activity | None = None
        self._depth = 0
        self._waiting: list[_Activity] = []

    def __enter__(self) -> None:
        me = self._simulation.activity
        if self._owner not in (None, me):
            self._waiting.append(me)
            self._simulation.wait_for(lambda: self._owner is None)
            self._waiting.remove(me)
        self._owner = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            for activity in self._waiting:
                self._simulation.wake(activity)


class _Condition(_Lock):
    def wait_for(self, condition: Callable[[], bool]) -> None:
        simulation = self._simulation
        while not condition():
            self.__exit__()
            simulation.pause(0.001)
            self.__enter__()

    def notify_all(self) -> None:
        """Does nothing: each waiting thread looks by itself."""
