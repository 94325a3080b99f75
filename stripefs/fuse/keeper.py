"""Keeps a FUSE connection while no supervisor runs: over a restart, an upgrade or the death of its supervisor.

A connection ends with its last descriptor. So the supervisor of a mount that is to outlive it starts a small process,
the keeper, and gives it the device, the memory with the journal and what else a successor must know. The keeper serves
nothing: requests of the kernel wait. It listens at `NAME.keeper` in the spec's directory, and whoever takes over there
becomes its supervisor. It ends

- on request, because the mount is over;
- when the connection is gone;
- when no successor came within the spec's `keep` seconds after its supervisor had ended: readers then get EIO.

    supervisor → keeper   keep    state, the descriptors of a `KeptConnection`     for a successor
                          worker  generation, a pidfd                    of the worker that answers the kernel now
                          end                                            the mount is over
    successor → keeper    take    answered `kept` and what was kept, or `busy` while a supervisor lives
                          ask     answered `kept` or `busy`
                          end     answered `kept` or `busy`; the first means that the mount is over now

It is started in a session of its own, so that no Ctrl-C reaches it, and knows nothing of what is served.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from stripefs.errors import MountError
from stripefs.fuse import ipc
from stripefs.fuse.control import address

__all__ = ["Keeper", "KeptConnection", "end", "is_waiting", "keeper_path"]


_ANSWERS_WITHIN = 5.0
"""Seconds for either side to say its line."""

_DIES_WITHIN = 10.0
"""Seconds for a killed worker to be gone: it may wait for a disk."""


class KeptConnection(NamedTuple):
    """The state and the descriptors that a supervisor leaves to the next one. state: JSON that only supervisors
    understand; a keeper adds the `generation` of the last worker. The taker owns the descriptors that it took."""

    state: dict[str, Any]
    device: int
    memory: tuple[int, int, int]


class Keeper:
    """A keeper as its supervisor sees it."""

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self.channel = channel
        self._process = process  # that we started, and have to reap

    @classmethod
    def start(cls, path: Path, seconds: float, kept: KeptConnection) -> Keeper:
        """A new keeper, which has this and waits so long for a successor. Raises OSError."""
        path.unlink(missing_ok=True)
        ours, theirs = ipc.pair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            with address(path) as short:
                listener.bind(short)
            path.chmod(0o600)
            listener.listen(8)
            inherited = (theirs.fileno(), listener.fileno())
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stripefs.fuse.keeper", *map(str, inherited), str(seconds), str(path)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        keeper = cls(ours, process)
        keeper._send({"op": "keep", "state": kept.state}, [kept.device, *kept.memory])
        return keeper

    @classmethod
    def take_over(cls, path: Path) -> tuple[Keeper, KeptConnection] | None:
        """Become the supervisor of the keeper at `path`; None where there is none. Raises MountError where it has one,
        or the last worker does not end."""
        try:
            channel, answer, descriptors = _request(path, "take")
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        if answer["op"] != "kept":
            channel.close()
            raise MountError("another supervisor has taken the mount over already", hint="see its status")
        device, counters, slot0, slot1, *worker = descriptors
        try:
            _kill_and_wait(worker)
        except BaseException:
            channel.close()
            raise
        return cls(channel, None), KeptConnection(answer["state"], device, (counters, slot0, slot1))

    def worker(self, generation: int, pidfd: int) -> None:
        """Another worker answers from now on."""
        self._send({"op": "worker", "generation": generation}, [pidfd])

    def end(self) -> None:
        """The mount is over."""
        self._send({"op": "end"}, [])
        self.close()

    def close(self) -> None:
        """Leave it, for a successor to find, or see off one that has ended."""
        self.channel.close()
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # it is init's when we end: no warning about that

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        with contextlib.suppress(OSError):  # it died: the supervisor's loop sees that
            ipc.send(self.channel, message, descriptors)


def keeper_path(directory: Path, name: str) -> Path:
    """Socket of the keeper of the mount of that name."""
    return directory / f"{name}.keeper"


def is_waiting(path: Path) -> bool:
    """Tells whether a keeper waits there for a successor."""
    return _was_kept(path, "ask")


def end(path: Path) -> bool:
    """End the connection that a keeper keeps there without a supervisor; True if there was one."""
    return _was_kept(path, "end")


def _was_kept(path: Path, operation: str) -> bool:
    try:
        channel, answer, _ = _request(path, operation)
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    channel.close()
    return bool(answer["op"] == "kept")


def _request(path: Path, operation: str) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """Raises FileNotFoundError and ConnectionRefusedError where no keeper is, or one that is just ending; MountError
    where no answer comes."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with address(path) as short:
            channel.connect(short)
        channel.settimeout(_ANSWERS_WITHIN)
        ipc.send(channel, {"op": operation})
        answer, descriptors = ipc.receive(channel)
        channel.settimeout(None)
    except BaseException as error:
        channel.close()
        if isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
            raise ConnectionRefusedError(str(path)) from error
        if isinstance(error, TimeoutError):
            raise MountError(f"the keeper at {path} does not answer", hint="try again") from error
        raise
    return channel, answer, descriptors


def _kill_and_wait(workers: list[int]) -> None:
    """Two workers must never answer one connection: the last one is dying with its supervisor. Raises MountError."""
    for pidfd in workers:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        ended = poll.poll(_DIES_WITHIN * 1000)
        os.close(pidfd)
        if not ended:
            raise MountError("the worker of the last supervisor does not end", hint="its disk may hang; try again")


class _KeeperProcess:
    """The keeper itself."""

    def __init__(self, channel: socket.socket, listener: socket.socket, seconds: float) -> None:
        self._channel: socket.socket | None = channel
        self._listener = listener
        self._seconds = seconds
        self._until = 0.0
        self._state: dict[str, Any] = {}
        self._descriptors: list[int] = []
        self._worker: list[int] = []

    def run(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            if self._channel is not None:
                poll.register(self._channel, select.POLLIN)
            if self._descriptors:
                poll.register(self._descriptors[0], 0)  # errors are always reported
            left = None if self._channel is not None else max(0.0, self._until - time.monotonic()) * 1000
            happened = {descriptor for descriptor, _ in poll.poll(left)}
            if not happened or (self._descriptors and self._descriptors[0] in happened):
                return
            if self._channel is not None and self._channel.fileno() in happened and not self._receive(self._channel):
                return
            if self._listener.fileno() in happened and not self._accept():
                return

    def _receive(self, channel: socket.socket) -> bool:
        """Handles a message of the supervisor or its end; False when the keeper is to end."""
        try:
            message, descriptors = ipc.receive(channel)
        except EOFError:
            channel.close()
            self._channel = None
            self._until = time.monotonic() + self._seconds
            return bool(self._descriptors)
        match message["op"]:
            case "keep":
                self._descriptors = _replaced(self._descriptors, descriptors)
                self._state = message["state"]
            case "worker":
                self._worker = _replaced(self._worker, descriptors)
                self._state["generation"] = message["generation"]
        return bool(message["op"] != "end")

    def _accept(self) -> bool:
        """Answer a client that connects; False when the keeper is to end."""
        client, _ = self._listener.accept()
        client.settimeout(_ANSWERS_WITHIN)
        with contextlib.ExitStack() as closing:
            closing.enter_context(client)
            with contextlib.suppress(EOFError, OSError):  # it changed its mind
                operation = ipc.receive(client)[0]["op"]
                if self._channel is not None or not self._descriptors:
                    ipc.send(client, {"op": "busy"})
                elif operation == "take":
                    ipc.send(client, {"op": "kept", "state": self._state}, [*self._descriptors, *self._worker])
                    client.settimeout(None)
                    self._channel = client
                    closing.pop_all()
                else:
                    ipc.send(client, {"op": "kept"})
                    return bool(operation != "end")
        return True


def _replaced(before: list[int], descriptors: list[int]) -> list[int]:
    for descriptor in before:
        os.close(descriptor)
    return descriptors


def main() -> None:
    """The keeper's program: CHANNEL LISTENER SECONDS PATH."""
    channel, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for one in (channel, listener):
        one.set_inheritable(False)
    path = sys.argv[4]
    try:
        ours = os.stat(path).st_ino
        _KeeperProcess(channel, listener, float(sys.argv[3])).run()
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == ours:  # else another keeper has its own there
                os.unlink(path)


if __name__ == "__main__":
    main()
