"""`imagefs deps key -- COMMAND`."""

from __future__ import annotations

import sys
from typing import Any

import click

from imagefs.cli.common import json_flag, print_json
from imagefs.cli.deps.asked import REQUEST, request_of
from imagefs.cli.options import plain_flags
from stripefs.cli.border import tell
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.show import table
from stripefs.errors import ConfigError

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
    from imagefs.deps.asking import ask
    from imagefs.deps.key import Key
    from imagefs.deps.key import explain as explained

    request = request_of(values, words)
    answer = ask(request)
    open_ends = [] if isinstance(answer.found, Key) else answer.found.open_ends
    key = answer.found if isinstance(answer.found, Key) else ask(request._replace(allow_unpinned=True)).found
    assert isinstance(key, Key)  # it was only refused for what is allowed now
    if as_json:
        shown = {"digest": "" if open_ends else key.digest, "key": key.to_document()}
        print_json({**shown, "open_ends": [one._asdict() for one in open_ends]})
    elif explain:
        sys.stdout.write(table(explained(key)) + "\n" + ("" if open_ends else f"\n{key.digest}\n"))
    elif not open_ends:
        sys.stdout.write(key.digest + "\n")
    if open_ends:
        if not as_json:
            for one in open_ends:
                tell(str(one), program="imagefs")
        raise ConfigError(
            f"there is no key, since {len(open_ends)} of the inputs may change",
            hint="--epoch TEXT or --allow-unpinned makes one",
        )
