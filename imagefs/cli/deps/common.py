"""What the commands on snapshots in a store share: which store and which snapshot is meant."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import click

from imagefs.cli.common import opened, settings_for
from imagefs.cli.deps.begin import INSTALL, SECTIONS, begin, named_store
from imagefs.cli.options import plain_flags
from imagefs.config import IMAGEFS, Settings
from imagefs.format.snapshot import Snapshot
from imagefs.repository.images import Images
from stripefs.cli.flags import SettingsCommand, given, settings_flags

__all__ = ["SHORT", "installing", "loaded", "settings_with_store", "snapshots_of"]

SHORT = 12
"""Digits of a name that people are shown; as many name a snapshot."""


def settings_with_store(ctx: click.Context, config: str) -> Settings:
    """The settings, for the store of dependency snapshots. Raises ConfigError."""
    return named_store(settings_for(ctx, config))


def installing(name: str, text: str, metavar: str = "ARGUMENTS…") -> click.Command:
    """The command of one of `begin.FORMS`, for lines that are not read without click; `text` is its page."""

    @click.command(name, cls=SettingsCommand, help=text, context_settings={"ignore_unknown_options": name != "run"})
    @click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar=metavar)
    @plain_flags(INSTALL)
    @settings_flags(*SECTIONS, options=IMAGEFS)
    @click.pass_context
    def command(ctx: click.Context, /, arguments: tuple[str, ...], **values: Any) -> int:
        return begin(name, arguments, values, given(ctx))

    return command


def snapshots_of(ctx: click.Context, config: str) -> AbstractContextManager[Images]:
    """The store of dependency snapshots, which exists. Raises ConfigError and StoreErrors."""
    return opened(settings_with_store(ctx, config))


def loaded(ctx: click.Context, config: str, snapshot: str) -> Snapshot:
    """The document of the snapshot of this name, or whose name begins so. Raises ConfigError, NoSuchSnapshot,
    DamagedObject, FormatError and StoreErrors."""
    from imagefs.repository.snapshots import Snapshots

    with snapshots_of(ctx, config) as images:
        snapshots = Snapshots(images)
        return snapshots.load(snapshots.resolve(snapshot))
