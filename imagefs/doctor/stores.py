"""Checks of stores and registries of images: whether they are reached, listed, read and written, and their clocks.

Of stores it also says how fast they answer, of registries with which credentials they are reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from imagefs.doctor import CheckResult, CheckState
from imagefs.repository.registry import RegistryRepository
from imagefs.repository.registry_credentials import FoundCredentials
from imagefs.repository.store import open_repository
from stripefs.errors import NotFound, StoreError, StripefsError, Unsupported
from stripefs.settings import StoreSettings, redact
from stripefs.store.base import Kind, Store
from stripefs.store.url import open_store
from stripefs.write.store_ops import StoreClock

__all__ = ["registry_findings", "store_findings"]

_SKEW, _TOO_MUCH = 5.0, 240.0
"""Seconds between the clocks. Kerberos refuses tickets beyond 300 s, S3 requests beyond 900 s."""

_SLOW = 0.25
"""Seconds for one listing: a start asks a store some ten times before its first byte."""

_MORE = "see `stripefs ls` on it for more"
_READ = 1 << 20
"""Bytes of a document that is read, at most."""


def store_findings(settings: StoreSettings, *, write: bool = True) -> list[CheckResult]:
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


def _examined(store: Store, name: str, began: float, *, write: bool) -> list[CheckResult]:
    listed = _tried("store.list", name, "`imagefs ls`, `gc` and tags need it", lambda: _list(store, began))
    if listed.state == "fail":
        return [listed]
    read = _tried("store.read", name, "no image of it can be started", lambda: _read(store))
    return [listed, read, *(_written(store, name) if write else [])]


def _tried(check: str, name: str, cost: str, attempt: Callable[[], tuple[CheckState, str]]) -> CheckResult:
    """The finding of an attempt, or the error of the store."""
    try:
        state, found = attempt()
    except Unsupported as error:
        return CheckResult(
            check, "warn", f"{name}: {error.message}", cost, "use another kind of store where that is needed"
        )
    except StoreError as error:
        return _failed(check, name, error, cost)
    return CheckResult(check, state, f"{name}: {found}", "every start waits for it" if state == "warn" else "")


def _failed(check: str, name: str, error: StripefsError, cost: str, hint: str = _MORE) -> CheckResult:
    return CheckResult(check, "fail", f"{name}: {error.message}", cost, error.hint or hint)


def _list(store: Store, began: float) -> tuple[CheckState, str]:
    if not store.capabilities.listing:
        raise Unsupported("it can be read and not listed")
    asked = time.monotonic()
    next(iter(store.scandir(b"/")), [])
    took = time.monotonic() - asked
    told = f"connected in {1000 * (asked - began):.0f} ms, listed in {1000 * took:.0f} ms"
    return ("warn" if took > _SLOW else "ok"), told


def _read(store: Store) -> tuple[CheckState, str]:
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


def _written(store: Store, name: str) -> list[CheckResult]:
    """Checks whether files can be made, and the difference of the clocks, which the time of one file tells."""
    cost = "traces and dependency snapshots of this host stay on it, so other hosts learn nothing from its starts"
    try:
        before = time.time()
        clock = StoreClock(store)
        ahead = clock.now_ns() / 1e9 - time.time()
        uncertain = time.time() - before
    except StripefsError as error:
        return [
            CheckResult("store.write", "warn", f"{name}: {error.message}", cost, "give this host the right to write")
        ]
    return [CheckResult("store.write", "ok", f"{name}: files can be made"), skew(name, ahead, uncertain)]


def skew(name: str, ahead: float, uncertain: float) -> CheckResult:
    """ahead: seconds that the store's clock is before this host's, give or take `uncertain`."""
    told = f"{name}: its clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    off = max(abs(ahead) - uncertain - 1.0, 0.0)  # some stores have whole seconds
    if off <= _SKEW:
        return CheckResult(
            "store.clock", "ok", f"{name}: its clock is this host's, within {abs(ahead) + uncertain:.1f} s"
        )
    state: CheckState = "fail" if off > _TOO_MUCH else "warn"
    cost = "tokens and tickets are refused as not yet valid or expired" if state == "fail" else "times of files mislead"
    return CheckResult("store.clock", state, told, cost, "have both set by NTP (timedatectl, chronyc)")


_SLOW_REGISTRY = 1.0
"""Seconds for the first list of tags, with the connection and a token: a start asks for a tag and a few documents."""

_READ_COST = "no image of it can be started that is not whole on this host, and no pull is lazy"
_WRITE_COST = "`imagefs build` and `optimize` cannot store images there, and starts leave no traces for other hosts"


def registry_findings(settings: StoreSettings, *, write: bool = True) -> list[CheckResult]:
    """The findings for the repository of a registry that `settings.url` names.

    write: begin an upload there and take it back, to learn whether that can be done.
    """
    name = redact(settings.url)
    try:
        repository = open_repository(settings)
    except StripefsError as error:
        return [_failed("registry.reach", name, error, _READ_COST, "")]
    assert isinstance(repository, RegistryRepository)
    try:
        findings = [_credentials(name, repository.credentials()), _reached(name, repository)]
        if write and findings[-1].state != "fail":
            findings += _registry_written(name, repository)
    finally:
        repository.close()
    return findings


def _credentials(name: str, found: FoundCredentials) -> CheckResult:
    """The credentials that this user's programs have; a registry may want none."""
    if found.missing:
        helpers = ", ".join(sorted(found.missing))
        return CheckResult(
            "registry.credentials",
            "warn",
            f"{name}: {found.file} names {helpers}, which gave none",
            "the registry is asked without credentials, and refuses what is not public",
            "install that program on PATH of the services too, or `podman login`",
        )
    if found.file:
        return CheckResult("registry.credentials", "ok", f"{name}: credentials are in {found.file}")
    return CheckResult(
        "registry.credentials", "ok", f"{name}: there are no credentials, so only what is public is read"
    )


def _reached(name: str, repository: RegistryRepository) -> CheckResult:
    began = time.monotonic()
    try:
        found = f"{len(repository.entries(b'/tags'))} tags"
    except NotFound:
        found = "there is no such repository yet; the first build makes it, where the registry allows that"
    except StripefsError as error:
        return _failed("registry.read", name, error, _READ_COST, "")
    took = time.monotonic() - began
    state: CheckState = "warn" if took > _SLOW_REGISTRY else "ok"
    return CheckResult(
        "registry.read",
        state,
        f"{name}: {found}, in {1000 * took:.0f} ms",
        "every start waits for it" if took > _SLOW_REGISTRY else "",
    )


def _registry_written(name: str, repository: RegistryRepository) -> list[CheckResult]:
    before = time.time()
    try:
        clock = repository.check_writing()
    except StripefsError as error:
        hint = error.hint or "give this host the right to push"
        return [CheckResult("registry.write", "warn", f"{name}: {error.message}", _WRITE_COST, hint)]
    findings = [CheckResult("registry.write", "ok", f"{name}: blobs can be uploaded")]
    if clock is not None:
        now = time.time()
        findings.append(skew(name, clock - now, now - before)._replace(check="registry.clock"))
    return findings
