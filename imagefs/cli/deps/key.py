"""`imagefs deps key -- COMMAND`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from imagefs.cli.common import json_flag
from imagefs.cli.deps.asked import REQUEST, locks_of, request_of
from imagefs.cli.deps.begin import named_store
from imagefs.cli.deps.explained import show
from imagefs.cli.options import plain_flags
from imagefs.config import Settings, resolve
from stripefs.cli.flags import SettingsCommand

if TYPE_CHECKING:
    from imagefs.deps.keybuilder import Answer

__all__ = ["command"]


@click.command("key", cls=SettingsCommand)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
@plain_flags(REQUEST)
@click.option("--explain", is_flag=True, help="Show every component.")
@json_flag
def command(words: tuple[str, ...], explain: bool, as_json: bool, **values: Any) -> None:
    """Say which key an installation has, and install nothing.

    COMMAND is what would install. What may change while nothing here does, such as a name without a version, is a line
    each; then there is no key without --epoch or --allow-unpinned.
    """
    from imagefs.deps.keybuilder import ask

    request, locks = request_of(values, words), locks_of(_settings(), make=False)

    def asked(allow: bool) -> Answer:
        return ask(request._replace(allow_unpinned=True) if allow else request, locks)

    show(asked, explain=explain, as_json=as_json)


def _settings() -> Settings:
    """Those of the environment and the files; a store need not be named."""
    settings = resolve({})
    return named_store(settings) if settings.deps.store else settings
