"""What a start does about a snapshot, wherever that is used: hit, wait for another host, or install and publish.

    the store has a snapshot           hit: it is used
    another host is installing         wait for what it publishes, then a hit
    nothing                            miss: install, go on, publish in the background

`imagefs.deps.flow` does this for a directory of a host, `imagefs.deps.container` for a container.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imagefs.deps import outcome
from imagefs.errors import DamagedBlock, DamagedObject
from imagefs.startup.emission import events
from stripefs.errors import MountError, NotFound
from stripefs.settings import StoreSettings, redact

if TYPE_CHECKING:
    from imagefs.deps.lease import Leading

__all__ = ["CHANGED", "SHORT", "Missed", "absent", "found_or_installed", "missed", "used"]

CHANGED = "what it is installed from was changed meanwhile"
"""Why something is not published: nobody knows what the installer read."""

SHORT = 12
"""Digits of a key that people are shown."""

_T = TypeVar("_T")


class Missed(NamedTuple):
    """Why there is no hit. absent: maybe because the store has no such snapshot, or a broken one, so one may be
    published. mountable: whether one that another host publishes would be of use here. doubted: the store has one, of
    which this host could not read a block."""

    reason: str
    absent: bool
    mountable: bool = True
    doubted: bool = False


def missed(error: Exception) -> Missed:
    """For something that kept a snapshot from being used."""
    # The store itself may have to be made. One who has the lead sees whether a damaged snapshot is damaged for others
    # too. Where nothing can be mounted, nobody has asked the store.
    unmountable = isinstance(error, MountError)
    broken = isinstance(error, NotFound | DamagedObject)
    return Missed(
        str(error), absent=unmountable or broken, mountable=not unmountable, doubted=isinstance(error, DamagedBlock)
    )


def absent(store: StoreSettings, cache: str, name: str) -> Missed:
    """For a store that has no snapshot of this name; why, where this host tried to publish it."""
    last = outcome.last(cache, name)
    tried = f" (not published the last time: {last.lines[0]})" if last and not last.published and last.lines else ""
    return Missed(f"{redact(store.url)} has no such snapshot{tried}", absent=True)


def found_or_installed(
    store: StoreSettings,
    name: str,
    patience: float,
    hit: Callable[[], _T | Missed],
    install: Callable[[str, Leading | None], _T],
    tell: Callable[[str], None],
) -> _T:
    """What `hit` has, or `install` makes for the reason that it is given; it publishes where it has the lead.

    patience: seconds to wait for another host that installs the same. Raises what these two raise.
    """
    found = used(name, hit)
    if not isinstance(found, Missed):
        return found
    events().instant("dependencies", "miss", key=name)
    if not found.absent:
        return install(found.reason, None)
    from imagefs.deps.lease import Leading  # not needed by most, who find what they want

    waits = contextlib.ExitStack()

    def waiting(who: str) -> None:
        told: dict[str, Any] = {"cause": "lease", "key": name} | ({"host": who} if who else {})
        waits.enter_context(events().begin("dependencies", "wait", kind="wait", **told))
        tell(f"miss {name[:SHORT]}: waiting for what another host installs{f' ({who})' if who else ''}")

    with waits:
        leads = Leading(store, name, patience if found.mountable else 0.0, waiting, doubted=found.doubted)
    with leads as leading:
        if not leading.published:
            return install(f"{found.reason}{leading.remark}", leading)
        again = used(name, hit) if found.mountable else found
        return install(again.reason, None) if isinstance(again, Missed) else again


def used(name: str, hit: Callable[[], _T | Missed]) -> _T | Missed:
    """The result of `hit`; a hit, and the time that it took, are events."""
    begun = time.monotonic()
    found = hit()
    if not isinstance(found, Missed):
        events().begin("dependencies", "mount", ago=time.monotonic() - begun, key=name).end()
        events().instant("dependencies", "hit", key=name)
    return found
