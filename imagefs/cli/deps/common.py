"""What the commands on snapshots in a store share: which store and which snapshot is meant."""

from __future__ import annotations

from contextlib import AbstractContextManager

import click

from imagefs.cli.common import opened, settings_for
from imagefs.config import Settings
from imagefs.images import Images
from imagefs.reference import parse_store
from stripefs.errors import ConfigError

__all__ = ["SHORT", "settings_with_store", "snapshots_of"]

SHORT = 12
"""Digits of a name that people are shown; as many name a snapshot."""


def settings_with_store(ctx: click.Context, config: str) -> Settings:
    """The settings, for the store of dependency snapshots. Raises ConfigError."""
    settings = settings_for(ctx, config)
    if not settings.deps.store:
        raise ConfigError("no store is named", hint="give --store STORE, or set IMAGEFS_STORE")
    return settings._replace(store=settings.store._replace(url=parse_store(settings.deps.store)))


def snapshots_of(ctx: click.Context, config: str) -> AbstractContextManager[Images]:
    """The store of dependency snapshots, which exists. Raises ConfigError and StoreErrors."""
    return opened(settings_with_store(ctx, config))
