"""Resources that a supervisor owns: the FUSE connection of its mount, its worker processes, and the signals it awaits.

The connection is mounted, tuned, found again by a successor, unmounted and ended here, and serves nothing. Its
descriptor is given to workers, and a copy of it may be with a keeper (`stripefs.fuse.keeper`). `CrashLoop` tells from
the last deaths of workers that the next one will fare no better, or that there is no hurry to start it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from stripefs.errors import MountError
from stripefs.fuse import ipc, kernel, mounting
from stripefs.fuse.ipc import MountSpec

__all__ = [
    "CrashLoop",
    "FuseConnection",
    "WorkerProcess",
    "exit_name",
    "pidfd",
    "signals",
    "why_not_loaded",
]

_log = logging.getLogger(__name__)

_ENDS_WITHIN = 5.0
"""Seconds for a connection to end after the unmount. It does so at once when nothing else holds it; a container that is
just being created has a copy of every mount of the host until it leaves the host's root."""

_PAUSE = 0.05

_LOADS_WITHIN = 10.0
"""Seconds for a worker's program to be loaded, which takes one or two on a busy machine. Its supervisor waits."""


class FuseConnection:
    """The connection of a mount. device: its descriptor, -1 while there is none. tuning: what `apply_limits` found."""

    def __init__(self, spec: MountSpec) -> None:
        self._spec = spec
        self._path = spec.mount.mountpoint
        self._mounted: kernel.MountPoint | None = None
        self.device = -1
        self.init = kernel.Init(b"", can_resend=False)
        self.tuning: dict[str, dict[str, object]] = {}

    def mount(self, source: str) -> None:
        """A new connection, whose INIT is read. Raises MountError."""
        self.device = mounting.mount_device(self._spec, source)
        self._mounted = kernel.find_mount(self._path)
        self.init = kernel.read_init(self.device)

    def state(self) -> dict[str, Any]:
        """The state that `adopt` needs besides the descriptor."""
        return {"init": self.init.message.hex(), "mounted": self._mounted.device if self._mounted is not None else ""}

    def adopt(self, state: dict[str, Any], device: int) -> None:
        """The connection that another supervisor had, with what its worker was answering queued again.

        Raises MountError where it is not mounted here any more.
        """
        self.device = device
        self.init = kernel.parse_init(bytes.fromhex(state["init"]))
        found = kernel.find_mount(self._path)
        if found is None or found.device != state["mounted"] or not self.alive or not self.resend():
            raise MountError(
                f"{self._path} was left mounted, and is not to be seen here",
                hint="start it in the mount namespace where it was",
            )
        self._mounted = found

    @property
    def alive(self) -> bool:
        return kernel.connected(self.device)

    @property
    def can_resend(self) -> bool:
        """True when another worker can take over."""
        return self._spec.mount.resend and self.init.can_resend

    def resend(self) -> bool:
        """Queue the requests again that a worker was answering when it ended; True if that is done."""
        if not self.can_resend:
            return False
        try:
            kernel.resend(self.device)
        except OSError as error:
            _log.error("the kernel does not queue requests again: %s", error)
            return False
        return True

    def apply_limits(self, *, log: bool) -> None:
        """After INIT is answered, which resets them, set the kernel's limits. log: log those that cannot be set."""
        if self._mounted is None:
            return
        limits = self._spec.mount
        self.tuning = kernel.tune(self._mounted, limits.read_ahead_kb, limits.max_background)
        for name, report in self.tuning.items():
            if report["limit"] and log:
                _log.info(
                    "%s stays at %s instead of %s: %s", name, *(report[key] for key in ("now", "wanted", "limit"))
                )

    @property
    def is_attached(self) -> bool:
        """True when the mount is where it was put: not unmounted lazily before, and not covered by another."""
        found = kernel.find_mount(self._path)
        return self._mounted is not None and found is not None and found.device == self._mounted.device

    def detach(self, *, spare_used: bool = False, free_within: float = 0.0) -> bool:
        """Take the mount out of the tree; False when its connection outlives that because someone still uses it.

        spare_used: one that is in use stays where it is. free_within: the seconds that it may take to become free; a
        process that forked keeps its parent's files until its exec.
        """
        if not self.is_attached:
            return False
        end = time.monotonic() + free_within
        try:
            while not (free := mounting.unmount_unused(self._path)) and time.monotonic() < end:
                time.sleep(_PAUSE)
            return free if free or spare_used else not mounting.detach(self._path)
        except MountError as error:
            _log.warning("%s", error)
            return False

    def wait_ended(self) -> bool:
        """Tells whether the unmount ended the connection. A copy of the mount in another mount namespace keeps it."""
        poll = select.poll()
        poll.register(self.device, 0)
        return bool(poll.poll(_ENDS_WITHIN * 1000))

    def abort(self) -> bool:
        """End it, in use or not. False where it ends only with its last descriptor."""
        return self._mounted is not None and kernel.abort(self._mounted.connection)

    def close(self) -> None:
        """Close our descriptor."""
        if self.device >= 0:
            os.close(self.device)
            self.device = -1


class WorkerProcess:
    """A worker and our end of its channel. `pidfd` becomes readable when it ends; reap it then.

    connected: it has not closed its end of the channel yet.
    """

    def __init__(self, program: str, mountpoint: str) -> None:
        """`program` is the module to run."""
        self.channel, theirs = ipc.pair()
        # -P: the directory we run in is no source of code. The worker never uses the mountpoint; ps shows it.
        command = [sys.executable, "-P", "-m", program, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, mountpoint], pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, cwd="/"
            )
        self.pidfd = os.pidfd_open(self._process.pid)
        self.connected = True

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # it died: the loop will see that
            ipc.send(self.channel, message, descriptors or ())

    def message(self) -> dict[str, Any] | None:
        """The next message; None when the worker closed its end."""
        try:
            return ipc.receive(self.channel)[0]
        except EOFError:
            self.connected = False
            return None

    def kill(self) -> None:
        self._process.kill()

    def wait_or_kill(self, within: float) -> None:
        """Wait for its end, and enforce it after `within` seconds."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            _log.warning("the worker did not leave within %.0f s and is killed", within)
            self._process.kill()
        self.reap()

    def reap(self) -> int:
        """Its exit status, negative for a signal; waits for it."""
        status = self._process.wait()
        os.close(self.pidfd)
        self.channel.close()
        return status


def why_not_loaded(*modules: str) -> str:
    """The reason why modules of the next worker cannot be loaded, as in the middle of an upgrade; "" if they can."""
    command = [sys.executable, "-P", "-c", f"import {', '.join(modules)}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", timeout=_LOADS_WITHIN)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr.decode(errors="replace").strip() or exit_name(done.returncode)).splitlines()[-1]


def exit_name(status: int) -> str:
    """The end of a process, for messages, by its exit status as `reap` answers it."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


_DEATHS = 3
_DEATHS_WITHIN = 60.0

_MANY = 10
_MANY_WITHIN = 10.0


class CrashLoop:
    """The last deaths: when each was, in seconds, and how many requests had been answered until then."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def record(self, now: float, answered: int) -> None:
        self._seen = [*self._seen[1 - _MANY :], (now, answered)]

    def clear(self) -> None:
        """A death that was wanted says nothing, and neither do those before it."""
        self._seen.clear()

    @property
    def diagnosis(self) -> str:
        """`3 workers died within 5 s without answering anything` where that is so, else nothing."""
        last = self._seen[-_DEATHS:]
        if len(last) < _DEATHS or last[-1][1] != last[0][1] or last[-1][0] - last[0][0] >= _DEATHS_WITHIN:
            return ""
        return f"{_DEATHS} workers died within {last[-1][0] - last[0][0]:.0f} s without answering anything"

    @property
    def rapid(self) -> bool:
        """True if they die of the same request each time, as it seems, which must not take the whole machine."""
        return len(self._seen) == _MANY and self._seen[-1][0] - self._seen[0][0] < _MANY_WITHIN


@contextlib.contextmanager
def signals(handled: Sequence[int]) -> Iterator[socket.socket]:
    """A socket from which the numbers of those signals that arrive can be read. On the main thread only."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        handlers = [signal.signal(number, lambda *_: None) for number in handled]
        try:
            yield ours
        finally:
            for number, handler in zip(handled, handlers, strict=True):
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)


def pidfd(process: int, held: contextlib.ExitStack) -> int:
    """A descriptor that becomes readable when this process ends, -1 for process 0. Raises MountError when it has
    ended."""
    if not process:
        return -1
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        raise MountError(f"process {process}, which wanted the mount, has ended") from None
    held.callback(os.close, descriptor)
    return descriptor
