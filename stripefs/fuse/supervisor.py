"""The supervisor: mounts, keeps the mount while workers come and go, unmounts.

It holds everything that must outlive a worker: the FUSE device, the kernel's INIT message, the memory with the journal
(`stripefs.fuse.state_memory`), the control and metrics sockets. It serves nothing itself and imports only light
modules, so that it has nothing to die of.

A worker that dies is reaped; then FUSE_NOTIFY_RESEND queues again what it was answering, and the next worker is started
and given the device. Callers notice a pause. Where the kernel cannot resend (before 6.9) the connection is aborted,
which fails the calls under way and the files that are open, and a new one is mounted at the same place.

A spec with `keep` has a keeper besides (`stripefs.fuse.keeper`): when the supervisor is killed, or asked to end while
the mount is in use, the connection stays for the next supervisor of the same place, which goes on as after the death of
a worker.

Signals: TERM and INT unmount and end. HUP replaces the worker, which is how a new version of the program comes into a
live mount; the worker first waits for files that are being written, and a second HUP replaces it at once. It stays
where the next one could not be loaded, as in the middle of an upgrade. From a terminal HUP means that the terminal is
gone, and ends the mount like TERM.

Where a worker ended before it served, and the next one cannot be loaded, requests wait until it can, for ten minutes at
most. Three deaths within 60 s without one answered request in between end the connection; the dead mount is left where
it is, because an empty directory in its place would mislead whoever reads it.

Where systemd wants signs of life (`WatchdogSec=`), it gets them from this loop, and the worker is asked for one of its
own loop. A worker that answers none for three quarters of that time is killed and replaced, so that systemd need not
end the mount for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from stripefs import extras
from stripefs.errors import MountError
from stripefs.fuse import ipc, kernel, mounting
from stripefs.fuse.control import ControlFiles, Mount, metrics_listener
from stripefs.fuse.ipc import MountSpec
from stripefs.fuse.keeper import Keeper, KeptConnection, keeper_path
from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory
from stripefs.fuse.supervised import (
    CrashLoop,
    FuseConnection,
    WorkerProcess,
    exit_name,
    pidfd,
    signals,
    why_not_loaded,
)
from stripefs.osutil import has_terminal
from stripefs.systemd import Watchdog, notify, watchdog_period

__all__ = ["serve"]

_log = logging.getLogger(__name__)

_STARTS = 3
"""Times that a worker is tried to be started, a second apart, on a machine that is out of processes."""

_LEAVE_WITHIN = 5.0
"""Seconds that a worker gets to leave after the unmount, before it is killed."""

_FREE_WITHIN = 1.0
"""Seconds that a mount in use may take to become free, before whoever has files open there gets errors."""

_LOADABLE_WITHIN = 600.0
"""Seconds for which requests wait for a program of the next worker that can be loaded, as until an upgrade is done."""

_LOAD_AGAIN = 1.0

_STOPPING = (signal.SIGTERM, signal.SIGINT)


def serve(spec: MountSpec, *, ready: Callable[[], None]) -> int:
    """Mount and serve until unmounted, in the foreground; the exit status.

    `ready` is called once, when the mount answers; its errors undo the mount. Raises a StripefsError, with
    nothing left mounted, when the source or the mountpoint cannot be used, or workers lack pyfuse3. Call it on the main
    thread: it handles signals.
    """
    extras.require("pyfuse3")
    inherited = Keeper.take_over(keeper_path(Path(spec.directory), spec.name)) if spec.keep else None
    spec = spec.at(spec.resolved if inherited else mounting.check_mountpoint(spec))
    os.chdir("/")
    kernel.set_io_flusher()
    with contextlib.ExitStack() as held:
        return _Supervisor(spec, ready, held, inherited).run()


class _Exit(Exception):
    """The loop is over; its argument is the exit status."""


class _Supervisor:
    """inherited: a keeper, and what an earlier supervisor left with it; None for a new mount."""

    def __init__(
        self,
        spec: MountSpec,
        ready: Callable[[], None],
        held: contextlib.ExitStack,
        inherited: tuple[Keeper, KeptConnection] | None,
    ) -> None:
        self._spec = spec
        self._keeper: Keeper | None = inherited[0] if inherited else None
        self._inherited: KeptConnection | None = inherited[1] if inherited else None
        self._path = spec.mount.mountpoint
        self._ready = ready
        self._control_files = ControlFiles(self._path, Path(spec.directory) if spec.directory else None, spec.name)
        held.callback(self._control_files.close)
        self._listeners = [self._control_files.listener, *metrics_listener(spec.mount.metrics, held)]
        self._memory = self._inherited.memory if self._inherited is not None else make_memory()
        for descriptor in self._memory:
            held.callback(os.close, descriptor)
        self._counters = CounterPage(self._memory[0])
        self._signals = held.enter_context(signals((*_STOPPING, signal.SIGHUP)))
        self._owner = pidfd(spec.owner, held)
        held.callback(self._close)
        self._connection = FuseConnection(spec)
        self._worker: WorkerProcess | None = None
        self._leaving = False  # the worker was asked to make way for the next
        self._serving = False  # the last worker that was started has answered INIT
        self._generation = 0
        self._deaths = CrashLoop()
        self._watchdog = Watchdog(watchdog_period(), time.monotonic())
        self._stopping = False
        self._has_terminal = has_terminal()
        self._started_at = time.time()
        self._source = spec.source
        self._kept: dict[str, Any] = {}  # facts of the first worker that must hold for the next ones

    def run(self) -> int:
        self._mount_first() if self._inherited is None else self._take_over(self._inherited)
        try:
            while True:
                for event, value in self._events():
                    self._handle(event, value)
        except _Exit as end:
            return int(end.args[0])

    def _mount_first(self) -> None:
        self._start()
        try:
            ready = self._expect("ready")
            self._source, self._kept = ready["source"], ready["kept"]
            self._mount()
            self._announce("is mounted")
            self._start_keeper()
            self._ready()
        except BaseException:
            if self._connection.device >= 0:
                self._connection.detach()
                self._disconnect()
            raise

    def _take_over(self, kept: KeptConnection) -> None:
        """Go on where another supervisor ended. On failure the connection stays with its keeper."""
        state = kept.state
        self._connection.adopt(state, kept.device)
        self._source, self._kept = state["source"], state["kept"]
        self._started_at, self._generation = state["started_at"], state["generation"]
        self._start()
        self._hand_over()
        self._announce("was left mounted, and is served again")
        self._ready()

    def _announce(self, how: str) -> None:
        self._expect("serving")
        self._apply_limits()
        self._control_files.announce(Mount(self._path, self._source, os.getpid()))
        _log.info("%s %s at %s", self._source, how, self._path)

    def _start_keeper(self) -> None:
        """Have a keeper that knows what a successor must know, where there is to be one."""
        if self._keeper is not None:
            self._keeper.close()
        self._keeper = None
        if not self._spec.keep or not self._connection.can_resend:
            return
        facts = {"source": self._source, "kept": self._kept, "started_at": self._started_at}
        facts["generation"] = self._generation
        kept = KeptConnection({**self._connection.state(), **facts}, self._connection.device, self._memory)
        try:
            self._keeper = Keeper.start(self._control_files.keeper, self._spec.keep, kept)
        except OSError as error:
            _log.warning("%s ends with its supervisor: no keeper can be started: %s", self._path, error)
        else:
            if self._worker is not None:
                self._keeper.worker(self._generation, self._worker.pidfd)

    # Events

    def _events(self, within: float | None = None) -> Iterator[tuple[str, Any]]:
        """Waits for events: tick, signal NUMBER, orphaned, message DICT, died STATUS, disconnected, keeper lost.

        within: the seconds after which it returns in any case, fewer than the watchdog's.
        """
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        if self._owner >= 0 and not self._stopping:
            poll.register(self._owner, select.POLLIN)
        if self._worker is not None:
            poll.register(self._worker.pidfd, select.POLLIN)
            if self._worker.connected:
                poll.register(self._worker.channel, select.POLLIN)
        if self._keeper is not None:
            poll.register(self._keeper.channel, select.POLLIN)
        if self._connection.device >= 0:
            poll.register(self._connection.device, 0)  # errors are always reported
        left = self._watchdog.wait(time.monotonic()) if within is None else within
        happened = {descriptor for descriptor, _ in poll.poll(None if left is None else left * 1000)}
        if self._watchdog.tick(time.monotonic()):
            yield "tick", None
        if self._signals.fileno() in happened:
            for number in self._signals.recv(64):
                yield "signal", signal.Signals(number)
        if self._owner in happened:
            yield "orphaned", None
        worker = self._worker
        if worker is not None and worker.channel.fileno() in happened and (message := worker.message()) is not None:
            yield "message", message
        elif worker is not None and worker.pidfd in happened:
            self._worker = None
            yield "died", worker.reap()
        elif self._connection.device in happened:
            yield "disconnected", None
        elif self._keeper is not None and self._keeper.channel.fileno() in happened:
            yield "keeper lost", None

    def _expect(self, operation: str) -> dict[str, Any]:
        """Wait for a message of the first worker; everything else is a failure to mount."""
        while True:
            for event, value in self._events():
                if event == "message" and value["op"] == operation:
                    return dict(value)
                if event == "message" and value["op"] == "failed":
                    raise ipc.rebuild_error(value)
                if event == "signal" and value in _STOPPING:
                    raise MountError(f"interrupted by {value.name} before {self._path} was mounted")
                if event == "orphaned":
                    raise MountError(f"who wanted {self._path} mounted has ended")
                if event == "died":
                    raise MountError(f"the worker ended with {exit_name(value)} before it served", hint="see the log")
                if event == "disconnected":
                    raise MountError(f"{self._path} was unmounted before it answered")

    def _handle(self, event: str, value: Any) -> None:
        if event == "signal" and (value in _STOPPING or self._has_terminal):
            self._stop(value.name)
        elif event == "signal" and self._worker is not None:
            self._replace_worker(self._worker, value.name)
        elif event == "orphaned":
            self._stop(f"the end of process {self._spec.owner}")
        elif event == "disconnected":
            self._finish()
        elif event == "died":
            self._replace(value)
        elif event == "message":
            self._answer(value)
        elif event == "tick":
            self._ping()
        elif event == "keeper lost":
            _log.warning("the keeper of %s was killed: another one is started", self._path)
            self._start_keeper()

    def _replace_worker(self, worker: WorkerProcess, reason: str) -> None:
        if self._leaving:
            _log.info("%s: replacing the worker at once", reason)
            worker.kill()
        elif why := self._why_not_loaded():
            _log.error("%s: the worker stays, since the next one could not be loaded: %s", reason, why)
        else:
            _log.info("%s: replacing the worker", reason)
            self._leaving = True
            worker.send({"op": "leave"})

    def _ping(self) -> None:
        """Tell systemd that this loop runs, and ask the worker whether its own does."""
        notify("WATCHDOG=1")
        if self._worker is None:
            return
        if self._watchdog.silent(time.monotonic()):
            _log.error("the worker does not answer any more and is replaced")
            self._watchdog.excuse()
            self._worker.kill()
        else:
            self._worker.send({"op": "ping"})

    def _answer(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "stop":
                self._stop("a request on the control socket", force=bool(message.get("force")))
            case "serving":
                self._apply_limits()
            case "alive":
                self._watchdog.heard(time.monotonic())
            case "failed":
                _log.error("the new worker cannot serve: %s", ipc.rebuild_error(message))

    # Workers

    def _start(self) -> None:
        self._generation += 1
        self._serving = False
        self._watchdog.excuse()  # it answers from INIT on
        self._worker = WorkerProcess(self._spec.program, self._path)
        self._worker.send(
            {
                "op": "start",
                "command": self._spec.command,
                "payload": self._spec.payload,
                "mount": self._spec.mount._asdict(),
                "first": self._generation == 1,
                "kept": self._kept,
                "facts": self._facts(),
            },
            [*self._memory, *(listener.fileno() for listener in self._listeners)],
        )
        if self._keeper is not None:
            self._keeper.worker(self._generation, self._worker.pidfd)

    def _hand_over(self) -> None:
        """Give the worker the connection, which it serves from here on."""
        if self._worker is not None:
            self._worker.send({"op": "serve", "init": self._connection.init.message.hex()}, [self._connection.device])

    def _replace(self, status: int) -> None:
        """The worker is gone, and reaped: start the next one, unless there is nothing left to serve."""
        if self._stopping or not self._connection.alive:
            self._finish()
        if self._leaving:
            self._deaths.clear()  # this one says nothing about what workers die of
        else:
            self._deaths.record(time.monotonic(), self._counters.read()["answered"])
        if self._deaths.diagnosis:
            self._give_up(self._deaths.diagnosis)
        level = logging.INFO if self._leaving and not status else logging.WARNING
        self._leaving = False
        if self._connection.resend():
            _log.log(level, "the worker ended with %s; the next one takes over", exit_name(status))
            if self._deaths.rapid:
                time.sleep(1)
            self._start_next()
            self._hand_over()
        else:
            _log.error(
                "the worker ended with %s; this kernel cannot hand over: open files at %s fail, it is mounted anew",
                *(exit_name(status), self._path),
            )
            self._mount_anew()

    def _start_next(self) -> None:
        """Start a worker under a live mount, which a machine that is out of processes for a moment must not end, nor an
        upgrade that is under way."""
        if not self._serving:
            self._wait_until_loadable()
        for _ in range(_STARTS):
            try:
                self._start()
            except OSError as error:
                _log.error("no worker can be started for %s: %s; trying again", self._path, error)
                time.sleep(1)
            else:
                return
        self._give_up("no worker can be started")

    def _why_not_loaded(self) -> str:
        """The reason why the next worker cannot be loaded, "" if it can. Meanwhile this one was not asked for life."""
        why = why_not_loaded(self._spec.program, *(["stripefs.fuse.write_backend"] if self._spec.mount.rw else []))
        notify("WATCHDOG=1")
        self._watchdog.heard(time.monotonic())
        return why

    def _wait_until_loadable(self) -> None:
        said, end = "", time.monotonic() + _LOADABLE_WITHIN
        while why := self._why_not_loaded():
            if time.monotonic() > end:
                self._give_up(f"the next worker cannot be loaded: {why}")
            if why != said:
                _log.error("requests wait, since the next worker could not be loaded: %s", why)
                said = why
            for event, value in self._events(_LOAD_AGAIN):
                self._handle(event, value)

    def _give_up(self, why: str) -> NoReturn:
        """End the connection, and leave the dead mount where it is."""
        _log.critical(
            "%s; %s is dead from here on: see the lines above, then umount -l %s and mount again",
            *(why, self._path, self._path),
        )
        self._disconnect()
        raise _Exit(MountError.exit_code)

    # The mount

    def _mount(self) -> None:
        self._connection.mount(self._source)
        self._hand_over()

    def _mount_anew(self) -> None:
        self._disconnect()
        try:
            self._connection.detach()
            MemoryJournal(self._counters, self._memory[1:]).clear()
            self._start_next()
            self._mount()
            self._start_keeper()
        except MountError as error:
            _log.critical("%s could not be mounted anew: %s", self._path, error)
            raise _Exit(error.exit_code) from error

    def _apply_limits(self) -> None:
        """Set the kernel's limits once a worker serves, and tell it for `status`."""
        self._serving = True
        self._connection.apply_limits(log=self._generation == 1)
        self._watchdog.expect(time.monotonic())
        if self._worker is not None:
            self._worker.send({"op": "facts", "facts": self._facts()})

    def _facts(self) -> dict[str, Any]:
        return {
            "supervisor_pid": os.getpid(),
            "started_at": self._started_at,
            "generation": self._generation,
            "restarts": self._generation - 1,
            "privileged": mounting.is_privileged(),
            "resend": self._connection.can_resend,
            "kernel": self._connection.tuning,
        }

    # The end

    def _stop(self, reason: str, *, force: bool = False) -> None:
        """Unmount and end. A mount in use is left to its keeper, if it has one, unless `force`."""
        _log.info("%s: unmounting %s", reason, self._path)
        self._stopping = True
        spare_used = self._keeper is not None and not force
        detached = self._connection.detach(spare_used=spare_used, free_within=_FREE_WITHIN)
        if spare_used and not detached and self._connection.is_attached:
            _log.warning("%s is in use: its readers wait up to %g s for the next daemon", self._path, self._spec.keep)
            raise _Exit(0)
        if not detached or not self._connection.wait_ended():
            _log.warning("%s was in use: whoever has files open there gets errors now", self._path)
            self._disconnect(graceful=self._spec.mount.rw)
        self._finish()

    def _finish(self) -> None:
        """The connection is gone: see the worker off and end."""
        self._end_keeper()
        if self._worker is not None:
            self._worker.wait_or_kill(_LEAVE_WITHIN)
            self._worker = None
        _log.info("%s is unmounted", self._path)
        raise _Exit(0)

    def _disconnect(self, *, graceful: bool = False) -> None:
        """End the connection, whoever still uses it. It dies with its last descriptor when fusectl is not at hand.

        graceful: the worker may give up unpublished files and their locks before it ends.
        """
        self._end_keeper()
        aborted = self._connection.abort()
        if self._worker is not None:
            if not (graceful and aborted):
                self._worker.kill()
            self._worker.wait_or_kill(_LEAVE_WITHIN)
            self._worker = None
        self._connection.close()

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait_or_kill(_LEAVE_WITHIN)
        self._connection.close()
