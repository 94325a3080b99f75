"""State that data transfer keeps of DataNodes between reads: idle connections, and refusals with their pauses.

Keys are transfer addresses. Everything here is safe to use from many threads.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from dataclasses import dataclass, field

from stripefs.retry import Backoff

__all__ = ["Connections", "Refusals"]

REUSE = 3.0
"""Seconds for which a connection is kept: a DataNode closes it after 4 (dfs.datanode.socket.reuse.keepalive)."""

REFUSALS = 3
"""Refusals in a row after which no read is tried in this way for a while."""

PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds of the first such while, and of the longest one."""


class Connections:
    """Idle connections to DataNodes. A thread, which ends with the last of them, closes those that nobody took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[float, socket.socket]]] = {}
        self._sweeping = False
        self._closed = threading.Event()

    def take(self, address: str) -> socket.socket | None:
        """One that the DataNode has not closed, None where there is none."""
        now = time.monotonic()
        while True:
            with self._lock:
                idle = self._idle.get(address)
                if not idle:
                    return None
                since, sock = idle.pop()
            if now - since < REUSE and not _readable(sock):
                return sock
            sock.close()

    def keep(self, address: str, sock: socket.socket) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._idle.setdefault(address, []).append((time.monotonic(), sock))
                if not self._sweeping:
                    self._sweeping = True
                    threading.Thread(target=self._sweep, name="idle connections", daemon=True).start()
                return
        sock.close()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            idle = [sock for each in self._idle.values() for _, sock in each]
            self._idle.clear()
        for sock in idle:
            sock.close()

    def _sweep(self) -> None:
        while self._sweeping:
            self._closed.wait(REUSE)
            with self._lock:
                before = time.monotonic() - REUSE
                expired = [sock for each in self._idle.values() for since, sock in each if since <= before]
                fresh = {
                    address: [(since, sock) for since, sock in each if since > before]
                    for address, each in self._idle.items()
                }
                self._idle = {address: each for address, each in fresh.items() if each}
                self._sweeping = bool(self._idle)
            for sock in expired:
                sock.close()


@dataclass(slots=True)
class _Track:
    """Refusals in a row of one DataNode, or of all."""

    reason: str = ""
    number: int = 0
    pause: Backoff = field(default_factory=lambda: Backoff(PAUSE, LONGEST_PAUSE))


class Refusals:
    """Refusals of DataNodes to be read from, and the pauses after REFUSALS of them in a row.

    As long as no DataNode has granted a read those of all count together: a firewall or SASL is in front of all. From
    then on each has its own count, of failures of its connection alone: a block that it does not have, or that has no
    checksums, says nothing of its other blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._granting: set[str] = set()
        self._tracks: dict[str, _Track] = {}  # that of all has the address ""

    def granting(self, address: str) -> bool:
        """True if that DataNode has granted a read, and has not been given up since."""
        return address in self._granting

    def granted(self, address: str) -> None:
        with self._lock:
            self._granting.add(address)
            self._tracks.pop(address, None)
            self._tracks.pop("", None)

    def refused(self, address: str, reason: str, *, of_connection: bool) -> None:
        """Note a refusal. of_connection: no answer came, so it was none of a block."""
        with self._lock:
            if of_connection or not self._granting:
                self._count(address, reason)
                if not self._granting:
                    self._count("", reason)

    def forgive(self, address: str) -> None:
        """Forget that DataNode's own refusals."""
        with self._lock:
            self._tracks.pop(address, None)

    def _count(self, address: str, reason: str) -> None:
        now = time.monotonic()
        track = self._tracks.setdefault(address, _Track())
        track.reason = reason
        track.number += 1
        if track.number >= REFUSALS and not track.pause.paused(now):
            track.pause.failed(now)
            self._granting.discard(address)

    def reason(self, address: str) -> str:
        """The reason for which that DataNode is not asked now, "" for none. address: "" is for all of them."""
        now = time.monotonic()
        for track in (self._tracks.get(""), self._tracks.get(address)):
            if track is not None and track.pause.paused(now):
                return track.reason
        return ""

    def paused(self) -> list[str]:
        """The addresses of DataNodes that are not asked now, without the others."""
        with self._lock:
            return sorted(address for address in self._tracks if address and self.reason(address))


def _readable(sock: socket.socket) -> bool:
    """True of an idle connection once the DataNode has closed it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
