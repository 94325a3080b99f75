"""The worker: it serves one mount, of whatever tree, until it is unmounted, or until it dies and the supervisor starts
the next one.

A worker's program makes a `Backend` and calls `main`. It is started as `python -P -m PROGRAM CHANNEL SUPERVISOR
MOUNTPOINT`: the descriptor of its end of the channel, the supervisor's pid, and the mountpoint only so that ps shows
it. It never touches a file below that mountpoint.

pyfuse3 can only mount or be given `/dev/fd/N`, and always starts by answering INIT. So N is first a socket that holds
the kept INIT message; when pyfuse3 has read it, `Operations.init` puts the real device in its place.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyfuse3
import trio

from stripefs import __version__, logs
from stripefs.background import supervise
from stripefs.errors import StripefsError
from stripefs.executor import Lane
from stripefs.fuse import ipc, kernel
from stripefs.fuse.control_server import ControlServer, Request
from stripefs.fuse.operations import TreeOperations, operations_for
from stripefs.fuse.protocol import ServedTree
from stripefs.fuse.state_memory import CounterPage, MemoryJournal
from stripefs.osutil import die_with_parent
from stripefs.settings import MountSettings, mount_settings

__all__ = ["DEFERS_FOR", "LEAVES_WITHIN", "Backend", "Start", "freeze_survivors", "main", "wait_for_writers"]

_log = logging.getLogger(__name__)

TASKS = 512
"""Requests answered at once. pyfuse3's default of 99 could all be reads that wait, and then metadata would wait too."""

LEAVES_WITHIN = 600.0
"""Seconds that a worker that is to be replaced waits for the files that are being written."""

DEFERS_FOR = 60.0
"""Seconds at the end of that in which files that are opened for writing wait for the next worker."""

SLOW = 0.02
"""Seconds of processor time from which on a full collection of garbage counts as slow: some 50,000 names. A request
waits no more than twice as long."""

_LOOK_EVERY = 0.05

_OPTIONS = frozenset(("fsname=bootseer",))  # names nothing here: the supervisor has mounted already


@dataclass(frozen=True, slots=True)
class Start:
    """Arguments with which a worker begins. `first`: no worker served this mount before, so what cannot be served may
    be refused.

    payload: the spec's. kept: `Backend.kept` of the first worker. counters and journal outlive this worker.
    """

    payload: str
    mount: MountSettings
    first: bool
    kept: Mapping[str, Any]
    counters: CounterPage
    journal: MemoryJournal


class Backend(Protocol):
    """The service of a worker. `source` and `kept` are asked for once `open` has returned."""

    @property
    def source(self) -> str:
        """The source that the mount table shows."""

    @property
    def kept(self) -> Mapping[str, Any]:
        """The findings of this worker that the next ones must know, as JSON has it."""

    @property
    def requests(self) -> Mapping[str, Request]:
        """Requests that the control socket answers besides `status` and `stop`."""

    @property
    def open_writes(self) -> int:
        """Files that are being written, whose writers would get errors if this worker ended now."""

    async def open(self) -> None:
        """Reach what is to be served. Raises StripefsError when that cannot be; the first worker must not wait long."""

    async def run(self, *, task_status: trio.TaskStatus[ServedTree]) -> None:
        """Start with the tree; then whatever must go on beside it, until cancelled."""

    def status(self) -> dict[str, Any]:
        """Figures for `status`."""

    def metrics(self, status: Mapping[str, Any]) -> str:
        """The whole status as Prometheus text."""

    def close(self) -> None: ...


def main(make: Callable[[Start], Backend]) -> None:
    """The program. Exit status 0 after an unmount or a reported start-up failure."""
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor unmounts
    channel = socket.socket(fileno=int(sys.argv[1]))
    code = 0
    try:
        start, descriptors = ipc.receive(channel)
        trio.run(_Worker(channel, start, descriptors, make).run)
    except EOFError:
        pass  # the supervisor gave up before it began
    except Exception:  # noqa: BLE001  the last word of this process; it ends here
        _log.critical("the worker dies; the supervisor starts the next one. Please report this", exc_info=True)
        code = 1
    logging.shutdown()
    os._exit(code)  # threads that wait for a dead server must not hold up the end


def freeze_survivors() -> None:
    """Keep full collections of garbage, in which no task runs, short: a mount that the kernel asked for a million names
    holds two million objects, which take 0.4 s. After a collection that took `SLOW`, later ones leave its survivors
    alone.

    Objects that are in no cycle are freed as ever. A cycle that is in use at such a moment is never collected, so it is
    not done after short collections, which a mount of few names has alone.
    """
    gc.freeze()  # modules that were loaded so far, and names that were replayed
    gc.collect()  # of next to nothing: the next full collection waits for a quarter of what this one leaves
    gc.callbacks.append(_Survivors())


class _Survivors:
    """Notes when each collection began, and freezes what survived a slow one."""

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, about: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif about["generation"] == 2 and time.thread_time() - self._began >= SLOW:
            gc.freeze()


class _Worker:
    def __init__(
        self, channel: socket.socket, start: dict[str, Any], descriptors: list[int], make: Callable[[Start], Backend]
    ) -> None:
        self._channel = channel
        self._facts: dict[str, Any] = start["facts"]
        counters, slot0, slot1, *listeners = descriptors
        self._counters = CounterPage(counters)
        self._listeners = [socket.socket(fileno=descriptor) for descriptor in listeners]
        self._mount = mount_settings(start["mount"])
        self._command = str(start["command"])
        self._start = Start(
            start["payload"],
            self._mount,
            start["first"],
            start["kept"],
            self._counters,
            MemoryJournal(self._counters, (slot0, slot1)),
        )
        self._make = make
        self._initialised = trio.Event()
        self._replaced = trio.Event()
        self._operations: TreeOperations

    async def run(self) -> None:
        logs.configure(self._mount.log_format, self._mount.log_level, self._mount.log_file, self._command)
        logging.getLogger("pyfuse3").addFilter(_is_relevant)
        kernel.set_io_flusher()
        try:
            backend = self._make(self._start)
            await backend.open()
        except StripefsError as error:
            ipc.send(self._channel, {"op": "failed", **ipc.describe_error(error)})
            return
        ipc.send(self._channel, {"op": "ready", "source": backend.source, "kept": dict(backend.kept)})
        message, (device,) = await Lane("channel", 1).run("waiting for the mount", ipc.receive, self._channel)
        async with trio.open_nursery() as nursery:
            tree: ServedTree = await nursery.start(backend.run)
            service = ControlServer(
                self._listeners,
                {**backend.requests, "status": self._answer_status(backend), "stop": self._answer_stop},
                lambda: backend.metrics(self._status(backend)),
            )
            nursery.start_soon(supervise, "answering status and metrics", service.run)
            nursery.start_soon(self._announce)
            nursery.start_soon(self._leave, backend)
            await self._serve(tree, bytes.fromhex(message["init"]), device)
            nursery.cancel_scope.cancel()
        backend.close()

    async def _serve(self, tree: ServedTree, init: bytes, device: int) -> None:
        """Answer the kernel until the file system is unmounted."""
        ours, pretended = ipc.pair()
        ours.send(init)
        number = pretended.detach()

        def on_init() -> None:
            os.dup2(device, number, inheritable=False)
            os.close(device)
            os.set_blocking(number, False)
            ours.close()
            self._initialised.set()

        freeze_survivors()
        _survive_vanished_requests()
        self._operations = operations_for(tree, self._counters, on_init, writable=self._mount.rw)
        pyfuse3.init(self._operations, f"/dev/fd/{number}", set(_OPTIONS))
        await pyfuse3.main(max_tasks=TASKS)

    async def _announce(self) -> None:
        """Tell the supervisor when the mount answers, and learn from it what `status` should show."""
        await self._initialised.wait()
        ipc.send(self._channel, {"op": "serving"})
        await supervise("listening to the supervisor", self._listen)

    async def _listen(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._channel)
            try:
                message, _ = ipc.receive(self._channel)
            except EOFError:
                return
            match message["op"]:
                case "ping":
                    ipc.send(self._channel, {"op": "alive"})
                case "leave":
                    self._replaced.set()
                case "facts":
                    self._facts = message["facts"]

    async def _leave(self, backend: Backend) -> None:
        """End for the next worker as soon as nothing is being written; the kernel sends that one what is unanswered."""
        await self._replaced.wait()
        if backend.open_writes:
            _log.info("%d files are being written: the next worker waits for them", backend.open_writes)
        await wait_for_writers(backend, self._operations)
        if backend.open_writes:
            _log.error(
                "%d files were being written for more than %g s: their writers get errors",
                *(backend.open_writes, LEAVES_WITHIN),
            )
        logging.shutdown()
        os._exit(0)  # at once: nothing may begin between the last look and the end

    def _answer_status(self, backend: Backend) -> Request:
        async def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
            return self._status(backend)

        return answer

    async def _answer_stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ipc.send(self._channel, {"op": "stop", "force": bool(request.get("force"))})
        return {"stopping": True}

    def _status(self, backend: Backend) -> dict[str, Any]:
        return {
            "v": 1,
            "version": __version__,
            "mountpoint": self._mount.mountpoint,
            "source": backend.source,
            **self._facts,
            "worker_pid": os.getpid(),
            "requests": self._counters.read(),
            **backend.status(),
        }


async def wait_for_writers(backend: Backend, operations: TreeOperations) -> None:
    """Return when nothing is being written, after `LEAVES_WITHIN` in any case."""
    end = trio.current_time() + LEAVES_WITHIN
    with trio.move_on_at(end):
        while backend.open_writes or operations.changes:
            operations.defer_writers = trio.current_time() >= end - DEFERS_FOR
            await trio.sleep(_LOOK_EVERY)


def _is_relevant(record: logging.LogRecord) -> bool:
    """False for a reply that found its caller killed or its mount gone: ENOENT from the kernel, and nobody's loss."""
    return not record.getMessage().endswith(f"fuse_reply_* failed with {os.strerror(errno.ENOENT)}")


class _Nursery:
    """The nursery of pyfuse3's loop, in which a request that vanished ends nothing.

    A request vanishes when its caller is killed between epoll's wake-up and the read, which then answers EAGAIN;
    pyfuse3 takes that for the end of the world (measured: once in 700 kills on a busy machine). The loop that met it
    just begins anew; it leaks one read buffer of which a page or two were touched.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, loop: Callable[..., Awaitable[None]], *args: Any, name: str | None = None) -> None:
        self._nursery.start_soon(self._persist, loop, args, name=name)

    async def _persist(self, loop: Callable[..., Awaitable[None]], args: tuple[Any, ...]) -> None:
        while True:
            try:
                return await loop(*args)
            except BlockingIOError:
                _log.debug("a request vanished before it was read")


@contextlib.asynccontextmanager
async def _open_nursery() -> AsyncIterator[_Nursery]:
    async with trio.open_nursery() as nursery:
        yield _Nursery(nursery)


def _survive_vanished_requests() -> None:
    """Have pyfuse3 open its nursery through `_open_nursery`."""
    stand_in = types.SimpleNamespace(**_public(trio))
    stand_in.open_nursery = _open_nursery
    setattr(pyfuse3, "trio", stand_in)  # noqa: B010  pyfuse3.asyncio replaces it the same way; its stub hides the name


def _public(module: types.ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
