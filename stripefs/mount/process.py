"""A worker as the supervisor sees it: a process, and a channel to it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from typing import Any

from stripefs.mount import channel as talk

__all__ = ["WorkerProcess", "ending"]

_log = logging.getLogger(__name__)


class WorkerProcess:
    """A worker and our end of its channel. `pidfd` becomes readable when it ends; reap it then.

    speaks: it has not closed its end of the channel yet.
    """

    def __init__(self, program: str, mountpoint: str) -> None:
        """`program` is the module to run."""
        self.channel, theirs = talk.pair()
        # -P: the directory we run in is no source of code. The worker never uses the mountpoint; ps shows it.
        command = [sys.executable, "-P", "-m", program, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, mountpoint], pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, cwd="/"
            )
        self.pidfd = os.pidfd_open(self._process.pid)
        self.speaks = True

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # it died: the loop will see that
            talk.send(self.channel, message, descriptors or ())

    def message(self) -> dict[str, Any] | None:
        """The next message; None when the worker closed its end."""
        try:
            return talk.receive(self.channel)[0]
        except EOFError:
            self.speaks = False
            return None

    def kill(self) -> None:
        self._process.kill()

    def leave(self, within: float) -> None:
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


def ending(status: int) -> str:
    """How a process ended, for messages, by its exit status as `reap` answers it."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
