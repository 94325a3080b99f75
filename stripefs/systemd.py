"""sd_notify(3): tell systemd how far we are (`Type=notify`), and that we live (`WatchdogSec=`)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["Watchdog", "notify", "watchdog_period"]

_log = logging.getLogger(__name__)


def notify(state: str) -> bool:
    """Send `state` ("READY=1", "STOPPING=1", "STATUS=…") to the socket that NOTIFY_SOCKET names.

    False when systemd did not ask or did not listen; a service that runs is worth more than one that says so.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), path)
    except OSError as error:
        _log.warning("systemd could not be told %s: %s", state, error)
        return False
    return True


def watchdog_period(environ: Mapping[str, str] | None = None) -> float:
    """Seconds between two `notify("WATCHDOG=1")`: a quarter of the time after which systemd kills this process for its
    silence. 0.0 where systemd wants none of this process."""
    environ = os.environ if environ is None else environ
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0  # it is for the process that started us
    try:
        return int(environ.get("WATCHDOG_USEC", "0")) / 4_000_000
    except ValueError:
        return 0.0


class Watchdog:
    """Timing of the signs of life for systemd, and of the answers of the process that is looked after.

    Times are seconds of one clock, given by the caller, who alone acts. Every `period` is a tick: tell systemd, and ask
    the other side. It is silent when it has answered nothing for three periods since it was first expected to.
    """

    def __init__(self, period: float, now: float) -> None:
        """period: of `watchdog_period`; with 0 there is never a tick."""
        self._period = period
        self._next = now + period
        self._heard: float | None = None

    def wait(self, now: float) -> float | None:
        """Seconds until the next tick, None where none comes."""
        return max(self._next - now, 0.0) if self._period else None

    def tick(self, now: float) -> bool:
        """Tells whether it is time for a tick, which this then counts as done."""
        if not self._period or now < self._next:
            return False
        self._next = now + self._period
        return True

    def expect(self, now: float) -> None:
        """The other side can answer from now on."""
        self._heard = now

    def heard(self, now: float) -> None:
        """The other side has answered, which counts while that is expected."""
        if self._heard is not None:
            self._heard = now

    def excuse(self) -> None:
        """The other side cannot answer until `expect`."""
        self._heard = None

    def silent(self, now: float) -> bool:
        """Tells whether the other side should have answered by now."""
        return bool(self._period) and self._heard is not None and now - self._heard > 3 * self._period
