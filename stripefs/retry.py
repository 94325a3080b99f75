"""Retry policy: which failures are tried again and after what pauses, rate-limited warnings, health of data hosts.

`RetryPolicy` states the policy of one kind of call as data, and `Attempts` decides by it. `retry` repeats a call that
blocks; `stripefs.executor` repeats those of tasks by the same decisions. `Attempts`, `Backoff` and `HostHealth` have no
clock of their own.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from stripefs.errors import Transient

__all__ = [
    "AVOID_FIRST",
    "AVOID_LONGEST",
    "FORGOTTEN",
    "Attempts",
    "Backoff",
    "HostHealth",
    "RetryClock",
    "RetryPolicy",
    "Seldom",
    "retry",
]

_T = TypeVar("_T")

LOG_EVERY = 60.0
"""Seconds between two lines of one kind."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a disk that failed is left alone."""

FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
"""Seconds before a call to a service that is away is tried again."""

_JITTER = 0.25
"""Share of a pause that chance may take away, so that clients which failed together do not come back together."""


class Seldom:
    """Warnings of one logger: the first of its kind at once, later ones with how many were left out between."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, kind: str, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._last.get(kind, -LOG_EVERY) < LOG_EVERY:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last[kind] = now
        others = self._left_out.pop(kind, 0)
        self._log.warning(message + (f" (and {others} times more before)" if others else ""), *arguments)


class Backoff:
    """Pauses after failures, from `first` seconds on twice as long each time, `longest` at most. `now` in seconds.

    Those of a service that is away, FIRST_RETRY and LONGEST_RETRY, unless given.
    """

    def __init__(self, first: float | None = None, longest: float | None = None) -> None:
        self._first = self._pause = FIRST_RETRY if first is None else first
        self._longest = LONGEST_RETRY if longest is None else longest
        self._until = float("-inf")

    def paused(self, now: float) -> bool:
        """True if the pause after the last failure lasts."""
        return now < self._until

    def failed(self, now: float) -> float:
        """Seconds of the pause that begins now."""
        pause = self._pause * (1 - _JITTER * random.random())  # noqa: S311  no secret
        self._until = now + pause
        self._pause = min(2 * self._pause, self._longest)
        return pause

    def worked(self) -> None:
        self._pause = self._first


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A call is tried again after one of `errors` that is none of `fatal`, as long as seconds and tries last.

    seconds: from the first try to the latest begin of another one. tries: at most, the first one included. first,
    longest: pauses between tries, as `Backoff` has them.
    """

    seconds: float = math.inf
    tries: float = math.inf
    first: float | None = None
    longest: float | None = None
    errors: tuple[type[Exception], ...] = (Transient,)
    fatal: tuple[type[Exception], ...] = ()


class Attempts:
    """The tries of one call, the first of which begins now. `now` in seconds, of one clock."""

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self._policy = policy
        self.restart(now)

    def restart(self, now: float) -> None:
        """The call has made progress: its time, its tries and its pauses begin anew."""
        self.deadline = now + self._policy.seconds
        self._tries_left = self._policy.tries
        self._backoff = Backoff(self._policy.first, self._policy.longest)

    def failed(self, error: Exception, now: float) -> float | None:
        """Seconds until the next try, None where `error` stands."""
        self._tries_left -= 1
        if not isinstance(error, self._policy.errors) or isinstance(error, self._policy.fatal):
            return None
        pause = self._backoff.failed(now)
        return pause if self._tries_left > 0 and now + pause < self.deadline else None


class RetryClock(NamedTuple):
    """The time in seconds, and a wait for so many."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def retry(call: Callable[[], _T], policy: RetryPolicy, clock: RetryClock | None = None) -> _T:
    """`call()`, tried again as `policy` says. Raises what the last try raises. Blocks.

    clock: the system's monotonic one unless given.
    """
    now, sleep = clock or RetryClock(time.monotonic, time.sleep)
    attempts = Attempts(policy, now())
    while True:
        try:
            return call()
        except Exception as error:
            pause = attempts.failed(error, now())
            if pause is None:
                raise
        sleep(pause)


AVOID_FIRST = 5.0
AVOID_LONGEST = 300.0
"""Seconds a host is avoided: the first time as long as the client's own time-out, then doubling. A DataNode that
restarts is back in 5 to 20 s; one that is gone is declared dead by its NameNode after 10 minutes by default."""

FORGOTTEN = 660.0
"""Seconds after which a silent host that nobody met any more is forgotten. A NameNode calls it dead after 630."""


@dataclass(frozen=True, slots=True)
class _Avoidance:
    begin: float
    length: float
    reason: str

    @property
    def end(self) -> float:
        return self.begin + self.length


class HostHealth:
    def __init__(self) -> None:
        self._avoidances: dict[str, _Avoidance] = {}
        self._silent: dict[str, float] = {}

    def failed(self, host: str, now: float, reason: str, began: float | None = None) -> bool:
        """Avoid the host. False where that tells nothing new.

        began: when the request was sent that failed; without it a failure of a host that is avoided tells nothing.
        """
        before = self._avoidances.get(host)
        if before is not None and (now < before.end if began is None else began <= before.begin):
            return False
        length = AVOID_FIRST if before is None else min(2 * before.length, AVOID_LONGEST)
        self._avoidances[host] = _Avoidance(now, length, reason)
        return True

    def worked(self, host: str) -> None:
        """The host has served a whole request: avoid it no longer."""
        self._avoidances.pop(host, None)
        self._silent.pop(host, None)

    def gave_no_sign(self, host: str, now: float) -> None:
        """The host does not answer even a question that costs it nothing: avoid it."""
        self._silent[host] = now
        self.failed(host, now, "gives no sign of life")

    def gave_sign(self, host: str) -> None:
        """The host answers such a question: it is avoided no longer if it was for silence."""
        if host in self._silent:
            self.worked(host)

    def silent_since(self, host: str) -> float | None:
        """Time at which the host last gave no sign of life; None where that is not known of it."""
        return self._silent.get(host)

    def any_silent(self, now: float) -> bool:
        """Tells whether any host is known to be silent, which nobody met for FORGOTTEN seconds at most."""
        return any(now - since < FORGOTTEN for since in list(self._silent.values()))

    def avoided(self, host: str, now: float) -> bool:
        return self.seconds(host, now) > 0

    def on_probation(self, host: str, now: float) -> bool:
        """Tells whether the host was avoided until a moment ago, and nothing has succeeded there since."""
        found = self._avoidances.get(host)
        return found is not None and now >= found.end

    def seconds(self, host: str, now: float) -> float:
        """For how long the host is avoided from now on."""
        found = self._avoidances.get(host)
        return 0.0 if found is None else max(0.0, found.end - now)

    def reason(self, host: str) -> str:
        """The failure for which the host is or was avoided, "" where something has succeeded there since."""
        found = self._avoidances.get(host)
        return "" if found is None else found.reason

    def any_avoided(self, now: float) -> bool:
        return any(now < found.end for found in list(self._avoidances.values()))

    def well(self, hosts: Iterable[str], now: float) -> list[str]:
        """The hosts that are not avoided."""
        return [host for host in hosts if not self.avoided(host, now)]

    def order(self, hosts: Sequence[str], now: float) -> list[str]:
        """The hosts that are not avoided first, else in the same order."""
        return sorted(hosts, key=lambda host: self.avoided(host, now))
