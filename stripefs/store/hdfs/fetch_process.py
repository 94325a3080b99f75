"""Fetches blocks in a process of its own, for a mount that has processors to spare.

One thread of a process runs Python at a time. A mount answers the kernel on one thread and copies each reply while it
holds the interpreter's lock; on 16 processors it waited as long for the threads that receive and check blocks as it
worked. With a process for these it has the lock to itself. Where two processors are all there is nothing is gained.

A fetch has a channel (a pair of sockets) for as long as it takes: the request goes there, then the process tells
progress, and at last that all came, or the error. Bytes come into memory that both processes map. To cancel a fetch the
mount ends its half of the channel, and waits until the process has ended the other half: only then is nothing written
into the buffer any more. Should the process die or hang, the mount fetches by itself until there is another one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial

from stripefs import __version__
from stripefs.errors import Abandoned, HostFailed, StoreError
from stripefs.osutil import die_with_parent
from stripefs.retry import Backoff
from stripefs.store.allocator import SharedBuffers, bound_allocator
from stripefs.store.base import Watch
from stripefs.store.common import Cancellation, cancellable
from stripefs.store.hdfs.data_transfer import BadChecksum, BlockFetcher, FetchRequest, Refused
from stripefs.store.hdfs.transfer_wire import BlockName, BlockRange

__all__ = ["FetchProcess", "main"]

log = logging.getLogger(__name__)

CAPACITY = 16 << 30
"""Bytes of buffers at most; a mount whose readers have more fetches the rest by itself."""

LEAST = 1 << 20

SILENT, STARTS_WITHIN = 10.0, 60.0
"""Seconds after which a process that does not answer is killed, and one that has not begun to."""

LOOK_EVERY = 1.0
"""Seconds between two looks at it."""

PROGRESS_EVERY = 0.05
"""Seconds between two reports of progress: half of what the reader's watchdog has between two looks."""

PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a process that has ended is replaced, doubling from the first to the longest."""

_MESSAGE = 1 << 16  # bytes at most
_TEXT = 4096  # characters of an error at most, up to twelve bytes each
_READY, _LOOK = b"ready", b"?"
_DONE, _PROGRESS, _ERROR = b"d", b"p", b"e"
_ERRORS: dict[str, type[HostFailed] | type[Abandoned]] = {
    each.__name__: each for each in (HostFailed, Refused, BadChecksum, Abandoned)
}
_FACTS = ("answered", "of_connection", "unreadable", "granted", "begin", "end")


class FetchProcess:
    """The mount's side. The process is started by the first fetch. Safe to use from many threads.

    Raises OSError where memory cannot be shared. least: bytes of a fetch that is worth the way to another process.
    """

    def __init__(self, least: int = LEAST) -> None:
        self._least = least
        self._buffers = SharedBuffers(CAPACITY)
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._control: socket.socket | None = None
        self._supervisor: threading.Thread | None = None
        self._closing = threading.Event()
        self.pid: int | None = None
        """Of the process, None where there is none."""

    def fetch(self, request: FetchRequest, watch: Watch | None) -> memoryview | None:
        """As `BlockFetcher.fetch`, into memory of its own; None where it cannot fetch now."""
        if request.piece.length < self._least:
            return None
        channel = self._take()
        if channel is None:
            return None
        taken = self._buffers.take(request.piece.length)
        if taken is None:
            self._keep(channel)
            return None
        answer: bytes | None = None
        try:
            with cancellable(watch, partial(_stop, channel)):
                answer = _answer(channel, _packed(request, taken[0]), watch)
        except Abandoned:  # before anything was sent, and said again below
            answer = b""
        finally:
            if answer is None:  # an error of our own: the buffer is not to be filled once it is free
                _end(channel)
        if not answer:
            channel.close()
        elif watch is not None and watch.cancelled:  # its reader may have ended it just now
            _end(channel)
        else:
            self._keep(channel)
        if answer == _DONE:
            return taken[1]
        del taken  # which an error would keep
        if answer:
            raise _unpacked_error(answer[1:])
        if watch is not None and watch.cancelled:
            raise Abandoned(f"read from DataNode {request.host} was cancelled")
        return None

    def start(self) -> None:
        """Begin to start the process, unless that has begun."""
        with self._lock:
            if self._supervisor is None and not self._closing.is_set():
                thread = threading.Thread(target=self._supervise, name="fetch process", daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads for us now: the mount fetches by itself
                    thread.start()
                    self._supervisor = thread

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            control, supervisor = self._control, self._supervisor
        if control is not None:
            _stop(control)
        if supervisor is not None:
            supervisor.join()
        self._buffers.close()

    def _take(self) -> socket.socket | None:
        """A channel; None where there is no process yet, or no more."""
        self.start()
        with self._lock:
            if self._control is None:
                return None
            if self._idle:
                return self._idle.pop()
            with contextlib.ExitStack() as undo:
                try:
                    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    undo.callback(ours.close)
                    with theirs:
                        socket.send_fds(self._control, [_LOOK], [theirs.fileno()])
                except OSError:  # no more descriptors for us, the process has died, or it takes no more messages
                    return None
                undo.pop_all()
        return ours

    def _keep(self, channel: socket.socket) -> None:
        with self._lock:
            if self._control is not None:
                self._idle.append(channel)
                return
        channel.close()

    # -- the process -----------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        pause = Backoff(PAUSE, LONGEST_PAUSE)
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                why = self._run()
            except OSError as error:
                why = f"it cannot be started: {error}"
            if self._closing.is_set():
                return
            now = time.monotonic()
            if now - began > LONGEST_PAUSE:
                pause.worked()
            seconds = pause.failed(now)
            log.warning("the process that fetches blocks is gone (%s); the mount fetches by itself meanwhile", why)
            self._closing.wait(seconds)
            self._buffers.trim()  # readers may have held some when it ended

    def _run(self) -> str:
        """Start the process, and look after it until it has ended; the reason. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # a process that hangs takes no messages
        shared = (theirs.fileno(), self._buffers.descriptor)
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, *map(str, shared), str(os.getpid()), __version__],
                    pass_fds=shared,
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                )
            self.pid = process.pid
            try:
                why = self._look_after(ours)
            finally:
                with self._lock:
                    self._control = self.pid = None
                    idle, self._idle = self._idle, []
                for channel in idle:
                    channel.close()
                process.kill()
                status = process.wait()
                self._buffers.trim()
        return why or f"it ended with status {status}"

    def _look_after(self, control: socket.socket) -> str:
        """Return when the process has ended its half of `control`, or is silent: then the reason."""
        asked: float | None = time.monotonic()  # of the first question that is not answered yet
        poll = select.poll()
        poll.register(control, select.POLLIN)
        while not self._closing.is_set():
            if poll.poll(LOOK_EVERY * 1000):
                try:
                    message = control.recv(_MESSAGE)
                except ConnectionError:  # it died with messages of ours unread
                    return ""
                if not message:
                    return ""
                asked = None
                if message == _READY:
                    with self._lock:
                        self._control = control
            elif self._control is None or self._buffers.used:
                now = time.monotonic()
                if asked is None:
                    asked = now
                elif now - asked > (limit := STARTS_WITHIN if self._control is None else SILENT):
                    return f"it has not answered for {limit:.0f} s"
                if self._control is not None:
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        control.send(_LOOK)
            else:
                asked = None
            self._buffers.trim()
        return ""


def _answer(channel: socket.socket, request: bytes, watch: Watch | None) -> bytes:
    """The last message about a request, b"" where the process ends the channel. Progress before it is passed on."""
    try:
        channel.send(request)
        while True:
            message = channel.recv(_MESSAGE)
            if message[:1] != _PROGRESS:
                return message
            if watch is not None:
                try:
                    watch.progress(int.from_bytes(message[1:], "little"))
                except Abandoned:  # said again by who finds the watch cancelled
                    _stop(channel)
    except OSError:  # the process died
        return b""


def _stop(channel: socket.socket) -> None:
    """End our half; what comes can still be received."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)


def _end(channel: socket.socket) -> None:
    """End our half, wait for the other one's end, and close."""
    _stop(channel)
    with contextlib.suppress(OSError), channel:
        while channel.recv(_MESSAGE):
            pass


def _packed(request: FetchRequest, offset: int) -> bytes:
    block = request.piece.block
    piece = (block.pool, block.id, block.stamp, block.length, request.piece.offset, request.piece.length)
    return json.dumps((offset, *piece, request.address, request.host, request.timeout, request.patience)).encode()


def _unpacked(message: bytes) -> tuple[int, FetchRequest]:
    offset, pool, number, stamp, whole, begin, length, *rest = json.loads(message)
    return offset, FetchRequest(BlockRange(BlockName(pool, number, stamp, whole), begin, length), *rest)


def _packed_error(error: StoreError) -> bytes:
    facts = {name: getattr(error, name) for name in _FACTS if hasattr(error, name)}
    hosted = {"host": error.host, "stalled": error.stalled} if isinstance(error, HostFailed) else {}
    return json.dumps((type(error).__name__, error.message[:_TEXT], hosted, facts)).encode()


def _unpacked_error(message: bytes) -> StoreError:
    name, text, hosted, facts = json.loads(message)
    error = _ERRORS.get(name, HostFailed)(text, **hosted)
    for fact, value in facts.items():
        setattr(error, fact, value)
    return error


# -- the other side ------------------------------------------------------------------------------------------------


class _Job(Cancellation):
    """The `Watch` of what a channel asks for."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__()
        self._channel = channel
        self._reported_at = 0.0

    def begin(self) -> None:
        self._reported_at = time.monotonic()

    def progress(self, received: int) -> None:
        super().progress(received)
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_EVERY:
            self._reported_at = now
            with contextlib.suppress(OSError):  # its other end is closed: it will be cancelled
                self._channel.send(_PROGRESS + received.to_bytes(8, "little"))


class _Server:
    """Serves the channels that come over `control`, a thread each, until that ends."""

    def __init__(self, control: socket.socket, memory: memoryview) -> None:
        self._control = control
        self._memory = memory
        self._fetcher = BlockFetcher()
        self._jobs: dict[int, _Job] = {}
        self._epoll = select.epoll()

    def serve(self) -> None:
        self._epoll.register(self._control, select.EPOLLIN)
        self._control.send(_READY)
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor != self._control.fileno():
                    self._cancel(descriptor)
                elif not self._accept():
                    return

    def _accept(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE, 1)
        for descriptor in descriptors:
            channel = socket.socket(fileno=descriptor)
            self._jobs[descriptor] = job = _Job(channel)
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
            thread = threading.Thread(target=self._serve, args=(channel, job), name="fetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads for us: the mount fetches by itself what comes by this channel
                del self._jobs[descriptor]
                channel.close()
        if message and not descriptors:
            self._control.send(_LOOK)
        return bool(message)

    def _cancel(self, descriptor: int) -> None:
        # Its number may stand for another channel by now. That ends unanswered then, and the mount fetches by itself.
        if (job := self._jobs.get(descriptor)) is not None:
            job.cancel()

    def _serve(self, channel: socket.socket, job: _Job) -> None:
        with channel, contextlib.suppress(OSError):
            try:
                while not job.cancelled and (message := channel.recv(_MESSAGE)):
                    answer = self._fetch(message, job)
                    if not job.cancelled:
                        channel.send(answer)
            finally:
                del self._jobs[channel.fileno()]  # epoll forgets it when it is closed

    def _fetch(self, message: bytes, job: _Job) -> bytes:
        offset, request = _unpacked(message)
        job.begin()
        try:
            self._fetcher.fetch(request, self._memory[offset : offset + request.piece.length], job)
        except StoreError as error:
            return _ERROR + _packed_error(error)
        return _DONE


def main() -> None:
    """`python -m stripefs.store.hdfs.fetch_process CONTROL MEMORY PARENT VERSION`.

    Numbers of two descriptors, then number and version of the process that started us: this file may be a newer one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the mount ends us
    *numbers, version = sys.argv[1:]
    control, memory, parent = map(int, numbers)
    if version != __version__:
        sys.exit(f"the mount is of version {version}, the installation of {__version__} now: mount anew")
    die_with_parent(parent)
    bound_allocator()
    shared = memoryview(mmap.mmap(memory, 0))
    os.close(memory)
    with contextlib.suppress(OSError):  # the mount has died
        _Server(socket.socket(fileno=control), shared).serve()
    os._exit(0)  # fetches under way are of no use any more


if __name__ == "__main__":
    main()
