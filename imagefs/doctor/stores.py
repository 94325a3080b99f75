"""Stores of images: whether they can be reached, listed, read and written, how fast they answer, and their clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from imagefs.doctor.finding import Finding, State
from stripefs.errors import StoreError, StripefsError, Unsupported
from stripefs.settings import StoreSettings, redact
from stripefs.store.base import Kind, Store
from stripefs.store.url import open_store
from stripefs.write.store_clock import StoreClock

__all__ = ["store_findings"]

_SKEW, _TOO_MUCH = 5.0, 240.0
"""Seconds between the clocks. Kerberos refuses tickets beyond 300 s, S3 requests beyond 900 s."""

_SLOW = 0.25
"""Seconds for one listing: a start asks a store some ten times before its first byte."""

_READ = 1 << 20
"""Bytes of a document that is read, at most."""


def store_findings(settings: StoreSettings, *, write: bool = True) -> list[Finding]:
    """The findings for one store.

    write: make an empty hidden file there, removed at once, to learn whether that can be done and what time it has.
    """
    name = redact(settings.url)
    began = time.monotonic()
    try:
        store = open_store(settings)
    except StripefsError as error:
        return [_failed("store.reach", name, error, "no image of it can be started that is not whole on this host")]
    try:
        return _examined(store, name, began, write=write)
    finally:
        store.close()


def _examined(store: Store, name: str, began: float, *, write: bool) -> list[Finding]:
    listed = _tried("store.list", name, "`imagefs ls`, `gc` and tags need it", lambda: _list(store, began))
    if listed.state == "fail":
        return [listed]
    read = _tried("store.read", name, "no image of it can be started", lambda: _read(store))
    return [listed, read, *(_written(store, name) if write else [])]


def _tried(check: str, name: str, cost: str, attempt: Callable[[], tuple[State, str]]) -> Finding:
    """The finding of an attempt, or the error of the store."""
    try:
        state, found = attempt()
    except Unsupported as error:
        return Finding(
            check, "warn", f"{name}: {error.message}", cost, "use another kind of store where that is needed"
        )
    except StoreError as error:
        return _failed(check, name, error, cost)
    return Finding(check, state, f"{name}: {found}", "every start waits for it" if state == "warn" else "")


def _failed(check: str, name: str, error: StripefsError, cost: str) -> Finding:
    return Finding(check, "fail", f"{name}: {error.message}", cost, error.hint or "see `stripefs ls` on it for more")


def _list(store: Store, began: float) -> tuple[State, str]:
    if not store.capabilities.listing:
        raise Unsupported("it can be read and not listed")
    asked = time.monotonic()
    next(iter(store.scandir(b"/")), [])
    took = time.monotonic() - asked
    told = f"connected in {1000 * (asked - began):.0f} ms, listed in {1000 * took:.0f} ms"
    return ("warn" if took > _SLOW else "ok"), told


def _read(store: Store) -> tuple[State, str]:
    """Read the first document there is."""
    if not store.capabilities.listing:
        raise Unsupported("nothing is known of its files that could be read")
    for path, length in _files(store):
        store.open(path).close() if length > _READ else store.get(path)
        return "ok", "its files can be read"
    return "ok", "it is empty"


def _files(store: Store) -> Iterator[tuple[bytes, int]]:
    """Files of the root and of the first directories in it: path and length."""
    directories = [b"/"]
    for entry in next(iter(store.scandir(b"/")), []):
        path = b"/" + entry.name
        if entry.kind is Kind.FILE:
            yield path, entry.length
        elif entry.kind is Kind.DIRECTORY:
            directories.append(path)
    for directory in directories[1:5]:
        for entry in next(iter(store.scandir(directory)), []):
            if entry.kind is Kind.FILE:
                yield directory + b"/" + entry.name, entry.length


def _written(store: Store, name: str) -> list[Finding]:
    """Checks whether files can be made, and the difference of the clocks, which the time of one file tells."""
    cost = "traces and dependency snapshots of this host stay on it, so other hosts learn nothing from its starts"
    try:
        before = time.time()
        clock = StoreClock(store)
        ahead = clock.now_ns() / 1e9 - time.time()
        uncertain = time.time() - before
    except StripefsError as error:
        return [Finding("store.write", "warn", f"{name}: {error.message}", cost, "give this host the right to write")]
    return [Finding("store.write", "ok", f"{name}: files can be made"), skew(name, ahead, uncertain)]


def skew(name: str, ahead: float, uncertain: float) -> Finding:
    """ahead: seconds that the store's clock is before this host's, give or take `uncertain`."""
    told = f"{name}: its clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    off = max(abs(ahead) - uncertain - 1.0, 0.0)  # some stores have whole seconds
    if off <= _SKEW:
        return Finding("store.clock", "ok", f"{name}: its clock is this host's, within {abs(ahead) + uncertain:.1f} s")
    state: State = "fail" if off > _TOO_MUCH else "warn"
    cost = "tokens and tickets are refused as not yet valid or expired" if state == "fail" else "times of files mislead"
    return Finding("store.clock", state, told, cost, "have both set by NTP (timedatectl, chronyc)")
