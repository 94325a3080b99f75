"""`imagefs deps diff A B`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from imagefs.cli.common import flags, json_flag, print_json
from imagefs.cli.deps.common import snapshots_of
from imagefs.format.inode import printable
from stripefs.cli.flags import SettingsCommand
from stripefs.errors import ConfigError

if TYPE_CHECKING:
    from imagefs.deps.key import Changes, Key

__all__ = ["command"]


class _Side(NamedTuple):
    """One of the two. files: what the snapshot holds by path, None for a key alone."""

    key: Key
    files: Mapping[str, str] | None


@click.command("diff", cls=SettingsCommand)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@json_flag
@flags("deps", "store")
@click.pass_context
def command(ctx: click.Context, first: str, second: str, as_json: bool, config: str) -> None:
    """Say what differs between two keys, and between what two snapshots hold.

    A and B are files that `imagefs deps key --json` wrote, or snapshots of the store by their first digits.
    """
    from imagefs.deps.key import changes, diff, told

    one, other = _side(ctx, first, config), _side(ctx, second, config)
    keys = diff(one.key, other.key)
    files = None if one.files is None or other.files is None else changes(one.files, other.files)
    if as_json:
        print_json({"key": keys._asdict(), "files": files and files._asdict()})
        return
    lines = _lines("key", keys, told) + ([] if files is None else _lines("file", files, str))
    sys.stdout.write("\n".join(lines or ["nothing differs"]) + "\n")


def _side(ctx: click.Context, text: str, config: str) -> _Side:
    """What an argument names. Raises ConfigError, FormatError and StoreErrors."""
    import json

    from imagefs.deps.key import Key
    from imagefs.housekeeping.snapshots import describe
    from imagefs.repository.images import is_digest
    from imagefs.repository.snapshots import Snapshots
    from imagefs.trace.references import open_image

    path = Path(text)
    if path.is_file():
        try:
            document = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{text} is no JSON", hint="`imagefs deps key --json` writes a key") from error
        inner = document.get("key") if isinstance(document, dict) else None
        return _Side(Key.from_document(document if inner is None else inner), None)
    if not is_digest(text.ljust(64, "0")):
        raise ConfigError(f"{text} is no file that is there, and no name of a snapshot")
    with snapshots_of(ctx, config) as images:
        snapshots = Snapshots(images)
        snapshot = snapshots.load(snapshots.resolve(text))
        target = open_image(images, snapshot.image).target
        return _Side(Key.from_document(snapshot.key), describe(target.base, target.table))


def _lines(kind: str, found: Changes[Any], told: Any) -> list[str]:
    lines = [
        *(f"- {kind} {name}: {told(value)}" for name, value in found.removed.items()),
        *(f"+ {kind} {name}: {told(value)}" for name, value in found.added.items()),
        *(f"~ {kind} {name}: {told(before)} -> {told(now)}" for name, (before, now) in found.changed.items()),
    ]
    return [printable(line) for line in lines]
