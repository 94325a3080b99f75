"""From the URL of a place where images lie to its repository."""

from __future__ import annotations

from imagefs.repository.base import Repository
from imagefs.repository.store import StoreRepository
from stripefs.settings import StoreSettings
from stripefs.store.url import open_store

__all__ = ["open_repository"]


def open_repository(settings: StoreSettings, *, make: bool = False) -> Repository:
    """The repository at `settings.url`, connected; with `make` it may be new. Raises ConfigError and StoreErrors."""
    return StoreRepository(open_store(settings, make=make))
