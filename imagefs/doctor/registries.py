"""Registries that hold images: whether they can be read and written, with which credentials, and their clocks."""

from __future__ import annotations

import time

from imagefs.doctor.finding import Finding, State
from imagefs.doctor.stores import skew
from imagefs.repository.registry import RegistryRepository
from imagefs.repository.registry_auth import Sought
from imagefs.repository.store import open_repository
from stripefs.errors import NotFound, StripefsError
from stripefs.settings import StoreSettings, redact

__all__ = ["registry_findings"]

_SLOW = 1.0
"""Seconds for the first list of tags, with the connection and a token: a start asks for a tag and a few documents."""

_READ_COST = "no image of it can be started that is not whole on this host, and no pull is lazy"
_WRITE_COST = "`imagefs build` and `optimize` cannot store images there, and starts leave no traces for other hosts"


def registry_findings(settings: StoreSettings, *, write: bool = True) -> list[Finding]:
    """The findings for the repository of a registry that `settings.url` names.

    write: begin an upload there and take it back, to learn whether that can be done.
    """
    name = redact(settings.url)
    try:
        repository = open_repository(settings)
    except StripefsError as error:
        return [_failed("registry.reach", name, error, _READ_COST)]
    assert isinstance(repository, RegistryRepository)
    try:
        findings = [_credentials(name, repository.credentials()), _reached(name, repository)]
        if write and findings[-1].state != "fail":
            findings += _written(name, repository)
    finally:
        repository.close()
    return findings


def _credentials(name: str, sought: Sought) -> Finding:
    """The credentials that this user's programs have; a registry may want none."""
    if sought.missing:
        helpers = ", ".join(sorted(sought.missing))
        return Finding(
            "registry.credentials",
            "warn",
            f"{name}: {sought.file} names {helpers}, which gave none",
            "the registry is asked without credentials, and refuses what is not public",
            "install that program on PATH of the services too, or `podman login`",
        )
    if sought.file:
        return Finding("registry.credentials", "ok", f"{name}: credentials are in {sought.file}")
    return Finding("registry.credentials", "ok", f"{name}: there are no credentials, so only what is public is read")


def _reached(name: str, repository: RegistryRepository) -> Finding:
    began = time.monotonic()
    try:
        found = f"{len(repository.entries(b'/tags'))} tags"
    except NotFound:
        found = "there is no such repository yet; the first build makes it, where the registry allows that"
    except StripefsError as error:
        return _failed("registry.read", name, error, _READ_COST)
    took = time.monotonic() - began
    state: State = "warn" if took > _SLOW else "ok"
    return Finding(
        "registry.read",
        state,
        f"{name}: {found}, in {1000 * took:.0f} ms",
        "every start waits for it" if took > _SLOW else "",
    )


def _written(name: str, repository: RegistryRepository) -> list[Finding]:
    before = time.time()
    try:
        clock = repository.check_writing()
    except StripefsError as error:
        hint = error.hint or "give this host the right to push"
        return [Finding("registry.write", "warn", f"{name}: {error.message}", _WRITE_COST, hint)]
    findings = [Finding("registry.write", "ok", f"{name}: blobs can be uploaded")]
    if clock is not None:
        now = time.time()
        findings.append(skew(name, clock - now, now - before)._replace(check="registry.clock"))
    return findings


def _failed(check: str, name: str, error: StripefsError, cost: str) -> Finding:
    return Finding(check, "fail", f"{name}: {error.message}", cost, error.hint)
