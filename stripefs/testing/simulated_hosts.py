"""Data hosts that do not exist: each a token bucket that can be slowed, frozen or killed while reads are under way.

A bucket sends at `rate` and saves up to `burst` bytes while idle. Reads at one host take turns by steps of about
10 ms of its rate. Time is reserved ahead, so late wake-ups of a thread do not add up to a lower rate.

The states are set by methods, or, across processes, by a file of lines `HOST STATE`; STATE is `up`, `frozen` (answers
nothing), `dead` (refuses at once) or a rate such as `1MB/s`. Hosts that the file does not name are up.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from stripefs.errors import Abandoned, ConfigError, HostFailed
from stripefs.store.base import Host, Watch
from stripefs.units import parse_rate

__all__ = ["SimulatedHosts", "TokenBucket", "write_control"]

_POLL = 0.05
"""Seconds between looks at the control file."""

_STEP_SECONDS = 0.01
_STEP_MIN, _STEP_MAX = 4 << 10, 256 << 10
"""Bytes handed out at once: small enough for fair turns, large enough for under 2000 wake-ups a second."""

_UP, _FROZEN, _DEAD = "up", "frozen", "dead"


class TokenBucket:
    """A token bucket that promises times instead of counting tokens. rate in bytes a second, burst in bytes."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate = rate
        self.burst = burst
        self._free_at = -math.inf  # full, however lately the clock began

    def promise(self, now: float, size: int) -> float:
        """The time at which `size` bytes asked for at `now` (seconds) will have been sent, after all that was promised
        before."""
        self._free_at = max(self._free_at, now - self.burst / self.rate) + size / self.rate
        return self._free_at

    def forget(self, now: float) -> None:
        """Drop what was promised beyond `now`."""
        self._free_at = min(self._free_at, now)


class _Lane:
    def __init__(self, rate: float, burst: int) -> None:
        self.state = _UP
        self.bucket = TokenBucket(rate, burst)
        self.changed = threading.Condition()


class SimulatedHosts:
    """Hosts h0 to h(count-1) of `rate` bytes a second each. Shared by all handles of one store."""

    def __init__(
        self, count: int, rate: float, *, burst: int = 1 << 20, timeout: float = 5.0, control: str = ""
    ) -> None:
        self._rate = rate
        self._timeout = timeout
        self._lanes = {f"h{number}": _Lane(rate, burst) for number in range(count)}
        self._control = Path(control) if control else None
        self._looked_at = 0.0
        self._seen: tuple[int, int, int] | None = None
        self._looking = threading.Lock()
        self._look()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._lanes)

    def listed(self) -> list[Host]:
        self._look()
        return [Host(name, live=lane.state != _DEAD) for name, lane in self._lanes.items()]

    def freeze(self, host: str) -> None:
        """Answer nothing until `restore`; reads give up after the time-out."""
        self._set(host, _FROZEN, self._rate)

    def kill(self, host: str) -> None:
        """Refuse reads, those under way too, until `restore`."""
        self._set(host, _DEAD, self._rate)

    def slow(self, host: str, rate: float) -> None:
        """Send `rate` bytes a second until `restore`."""
        self._set(host, _UP, rate)

    def restore(self, host: str) -> None:
        self._set(host, _UP, self._rate)

    def send(self, host: str, length: int, watch: Watch | None = None, before: int = 0) -> None:
        """Take as long as `host` needs for `length` bytes. Raises HostFailed, or Abandoned through `watch`.

        `before` is what the same read received already, for its progress.
        """
        lane = self._lane(host)
        if watch is not None:
            watch.on_cancel(lambda: _wake(lane))
        try:
            sent = 0
            while sent < length:
                step = min(length - sent, max(_STEP_MIN, min(_STEP_MAX, int(lane.bucket.rate * _STEP_SECONDS))))
                self._send_step(host, lane, step, watch)
                sent += step
                if watch is not None:
                    watch.progress(before + sent)
        finally:
            if watch is not None:
                watch.on_cancel(None)

    def _send_step(self, host: str, lane: _Lane, size: int, watch: Watch | None) -> None:
        silent_since = time.monotonic()
        promised: float | None = None
        while True:
            self._look()
            with lane.changed:
                if watch is not None and watch.cancelled:
                    raise Abandoned("the read was cancelled")
                if lane.state == _DEAD:
                    raise HostFailed(f"{host} refused the connection", host=host)
                now = time.monotonic()
                if lane.state == _FROZEN:
                    wait = silent_since + self._timeout - now
                    if wait <= 0:
                        raise HostFailed(f"{host} sent nothing for {self._timeout:g} s", host=host, stalled=True)
                else:
                    if promised is None:
                        promised = lane.bucket.promise(now, size)
                    wait = promised - now
                    if wait <= 0:
                        return
                lane.changed.wait(wait if self._control is None else min(wait, _POLL))

    def _lane(self, host: str) -> _Lane:
        lane = self._lanes.get(host)
        if lane is None:
            raise HostFailed(f"there is no host {host}", host=host)
        return lane

    def _set(self, host: str, state: str, rate: float) -> None:
        lane = self._lane(host)
        with lane.changed:
            if (lane.state, lane.bucket.rate) != (state, rate):
                lane.state, lane.bucket.rate = state, rate
                lane.bucket.forget(time.monotonic())
                lane.changed.notify_all()

    def _look(self) -> None:
        """Follow the control file when it changed. Raises ConfigError for a line that says nothing."""
        if self._control is None or time.monotonic() - self._looked_at < _POLL:
            return
        with self._looking:
            self._looked_at = time.monotonic()
            try:
                found = os.stat(self._control)
                seen = (found.st_ino, found.st_mtime_ns, found.st_size)
                if seen == self._seen:
                    return
                text = self._control.read_text()
            except FileNotFoundError:
                seen, text = None, ""
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"the control file {self._control} cannot be read: {error}") from error
            wanted = dict.fromkeys(self._lanes, (_UP, self._rate)) | self._parse(text)
            self._seen = seen
        for host, (state, rate) in wanted.items():
            self._set(host, state, rate)

    def _parse(self, text: str) -> dict[str, tuple[str, float]]:
        wanted = {}
        for line in text.splitlines():
            host, _, state = line.strip().partition(" ")
            if not host:
                continue
            if host not in self._lanes:
                raise ConfigError(f"the control file {self._control} names {host!r}, which is none of the hosts")
            named = state in (_UP, _FROZEN, _DEAD)
            wanted[host] = (state, self._rate) if named else (_UP, _positive_rate(state))
        return wanted


def write_control(file: Path, states: Mapping[str, str]) -> None:
    """Put `states` (host -> up, frozen, dead or a rate) in force for the stores that watch `file`, all at once."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text("".join(f"{host} {state}\n" for host, state in states.items()))
    fresh.replace(file)


def _positive_rate(text: str) -> float:
    rate = parse_rate(text)
    if rate <= 0:
        raise ConfigError(f"{text!r}: a rate must be above zero; a host that sends nothing is `frozen`")
    return rate


def _wake(lane: _Lane) -> None:
    with lane.changed:
        lane.changed.notify_all()
