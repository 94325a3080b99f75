"""Commands on the dependency snapshots of a store: `ls`, `inspect`, `diff`, `lock`, `verify`, `rm`, `gc`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from imagefs.cli.common import flags, json_flag, opened, print_json, progress_bar, quiet_flag, settings_for
from imagefs.cli.deps.fastpath import named_store
from imagefs.cli.store import report_damage
from imagefs.format.documents import SHORT, Snapshot
from imagefs.format.inodes import printable
from imagefs.repository.images import Images
from stripefs.cli.commands import SettingsCommand
from stripefs.cli.output import columns, table
from stripefs.errors import ConfigError, NotFound
from stripefs.units import format_size, parse_duration

if TYPE_CHECKING:
    from imagefs.deps.key import Changes, Key

__all__ = [
    "diff_command",
    "gc_command",
    "inspect_command",
    "loaded",
    "lock_command",
    "ls_command",
    "rm_command",
    "verify_command",
]


def _snapshots_of(ctx: click.Context, config: str) -> AbstractContextManager[Images]:
    """The store of dependency snapshots, which exists. Raises ConfigError and StoreErrors."""
    return opened(named_store(settings_for(ctx, config)))


def loaded(ctx: click.Context, config: str, snapshot: str) -> Snapshot:
    """The document of the snapshot of this name, or whose name begins so. Raises ConfigError, NoSuchSnapshot,
    DamagedObject, FormatError and StoreErrors."""
    from imagefs.repository.snapshots import Snapshots

    with _snapshots_of(ctx, config) as images:
        snapshots = Snapshots(images)
        return snapshots.load(snapshots.resolve(snapshot))


@click.command("ls", cls=SettingsCommand)
@json_flag
@flags("deps", "store")
@click.pass_context
def ls_command(ctx: click.Context, as_json: bool, config: str) -> None:
    """List the dependency snapshots in the store, the one used last first.

    SIZE is that of the devices and the metadata, before compression and with padding; USED is known by a day.
    """
    from imagefs.housekeeping.listing import SnapshotRow, list_snapshots

    with _snapshots_of(ctx, config) as images:
        rows = list_snapshots(images)

    def facts(row: SnapshotRow) -> dict[str, Any]:
        found = {"name": row.name, "stored_at": row.stored_at, "used_at": row.used_at, "error": row.error}
        if row.snapshot is None:
            return found
        one = row.snapshot
        more = {"size": row.size, "image": one.image, "kind": one.kind, "targets": list(one.targets)}
        return {**found, **more, "seconds": one.made_seconds}

    def cells(row: SnapshotRow) -> list[str]:
        stored, used = (time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (row.stored_at, row.used_at))
        if row.snapshot is None:
            return [row.name[:SHORT], stored, used[:10], "", "", printable(row.error)]
        one = row.snapshot
        return [row.name[:SHORT], stored, used[:10], format_size(row.size), one.kind, printable(" ".join(one.targets))]

    if as_json:
        print_json([facts(row) for row in rows])
    elif rows:
        head = ["SNAPSHOT", "STORED", "USED", "SIZE", "KIND", "TARGET"]
        sys.stdout.write(columns(head, [cells(row) for row in rows]) + "\n")


@click.command("inspect", cls=SettingsCommand)
@click.argument("snapshot")
@json_flag
@flags("deps", "store")
@click.pass_context
def inspect_command(ctx: click.Context, snapshot: str, as_json: bool, config: str) -> None:
    """Show the key, the image and the remarks of a snapshot. SNAPSHOT may be its first digits."""
    found = loaded(ctx, config, snapshot)
    if as_json:
        print_json({"name": found.name, **json.loads(found.to_json())})
        return
    rows = [
        ("snapshot", found.name),
        ("image", found.image),
        ("kind", found.kind),
        *(("target", printable(target)) for target in found.targets),
        ("made", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.made_at))),
        ("installed in", f"{found.made_seconds:.1f} s"),
        *(("noticed", printable(line)) for line in found.findings),
    ]
    sys.stdout.write(f"{table(rows)}\n\nkey\n{json.dumps(found.key, indent=2, sort_keys=True)}\n")


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
def diff_command(ctx: click.Context, first: str, second: str, as_json: bool, config: str) -> None:
    """Show the differences of two keys, and of the files of two snapshots.

    A and B are files that `imagefs deps key --json` wrote, or snapshots of the store by their first digits.
    """
    from imagefs.deps.key import changes, diff, format_value

    one, other = _side(ctx, first, config), _side(ctx, second, config)
    keys = diff(one.key, other.key)
    files = None if one.files is None or other.files is None else changes(one.files, other.files)
    if as_json:
        print_json({"key": keys._asdict(), "files": files and files._asdict()})
        return
    lines = _lines("key", keys, format_value) + ([] if files is None else _lines("file", files, str))
    sys.stdout.write("\n".join(lines or ["nothing differs"]) + "\n")


def _side(ctx: click.Context, text: str, config: str) -> _Side:
    """The key or snapshot that an argument names. Raises ConfigError, FormatError and StoreErrors."""
    import json

    from imagefs.deps.key import Key
    from imagefs.format import is_digest
    from imagefs.housekeeping.listing import describe_files
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
    with _snapshots_of(ctx, config) as images:
        snapshots = Snapshots(images)
        snapshot = snapshots.load(snapshots.resolve(text))
        target = open_image(images, snapshot.image).target
        return _Side(Key.from_document(snapshot.key), describe_files(target.base, target.table))


def _lines(kind: str, found: Changes[Any], render: Callable[[Any], str]) -> list[str]:
    lines = [
        *(f"- {kind} {name}: {render(value)}" for name, value in found.removed.items()),
        *(f"+ {kind} {name}: {render(value)}" for name, value in found.added.items()),
        *(f"~ {kind} {name}: {render(before)} -> {render(now)}" for name, (before, now) in found.changed.items()),
    ]
    return [printable(line) for line in lines]


@click.command("lock", cls=SettingsCommand)
@click.argument("snapshot")
@json_flag
@flags("deps", "store")
@click.pass_context
def lock_command(ctx: click.Context, snapshot: str, as_json: bool, config: str) -> None:
    """Print the lock of a snapshot as a requirements file with hashes. SNAPSHOT may be its first digits."""
    from imagefs.deps.lock import Lock

    found = loaded(ctx, config, snapshot)
    requirements = found.key.get("components", {}).get("lock") if isinstance(found.key, dict) else None
    if requirements is None:
        raise NotFound(f"the snapshot {found.name[:12]} was made without a lock", hint="see `imagefs deps inspect`")
    lock = Lock.from_document({"tool": "", "requirements": requirements})
    if as_json:
        print_json({"name": found.name, "requirements": [one._asdict() for one in lock.requirements]})
        return
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lock.to_text().splitlines()))


@click.command("verify", cls=SettingsCommand)
@click.argument("snapshot")
@json_flag
@quiet_flag
@flags("deps", "store")
@click.pass_context
def verify_command(ctx: click.Context, snapshot: str, as_json: bool, quiet: bool, config: str) -> int:
    """Read all objects of a snapshot and check every block. SNAPSHOT may be its first digits.

    Each damage is printed on a line, and the exit code is then 5. `imagefs verify STORE` checks a whole store.
    """
    from imagefs.housekeeping.verify import verify
    from imagefs.repository.snapshots import Snapshots

    with _snapshots_of(ctx, config) as images, progress_bar(quiet=quiet) as progress:
        snapshots = Snapshots(images)
        name = snapshots.resolve(snapshot)
        result = verify(images, snapshots.checked_image(name), progress)
    hint = f"imagefs deps rm {name[:SHORT]} takes it away, and the next start installs anew"
    return report_damage(result, [], f"snapshot {name[:SHORT]}", hint, as_json=as_json, quiet=quiet)


@click.command("rm", cls=SettingsCommand)
@click.argument("snapshots", nargs=-1, required=True, metavar="SNAPSHOT…")
@json_flag
@flags("deps", "store")
@click.pass_context
def rm_command(ctx: click.Context, snapshots: tuple[str, ...], as_json: bool, config: str) -> None:
    """Take snapshots away, with their images where no tag names these. SNAPSHOT may be its first digits.

    The bytes stay until `imagefs gc`. Hosts that have a snapshot mounted go on as long as those are there.
    """
    from imagefs.housekeeping.listing import remove_snapshot
    from imagefs.repository.snapshots import Snapshots

    with _snapshots_of(ctx, config) as images:
        names = [Snapshots(images).resolve(one) for one in snapshots]
        gone = [digest for name in names for digest in remove_snapshot(images, name)]
    _tell_removed(names, gone, as_json=as_json)


@click.command("gc", cls=SettingsCommand)
@click.option("-n", "--dry-run", is_flag=True, help="List the objects to be removed, and remove nothing.")
@click.option("--older-than", default="30d", metavar="TIME", help="Spare snapshots that were used in that time.  [30d]")
@json_flag
@flags("deps", "store")
@click.pass_context
def gc_command(ctx: click.Context, dry_run: bool, older_than: str, as_json: bool, config: str) -> None:
    """Remove snapshots that were not used for so long, and unpublished ones of hosts that died.

    A use is noted once a day, so a TIME below two days may remove snapshots in use. The bytes stay until `imagefs gc`.
    """
    from imagefs.housekeeping.gc import collect_snapshots

    try:
        age = parse_duration(older_than)
    except ConfigError as error:
        raise ConfigError(f"--older-than: {error.message}") from error
    with _snapshots_of(ctx, config) as images:
        snapshots, gone = collect_snapshots(images, older_than=age, dry_run=dry_run)
    _tell_removed(snapshots, gone, as_json=as_json)


def _tell_removed(snapshots: list[str], images: list[str], *, as_json: bool) -> None:
    """Print the names of snapshots and the digests of images."""
    if as_json:
        print_json({"snapshots": snapshots, "images": images})
        return
    sys.stdout.writelines([f"snapshot {name}\n" for name in snapshots] + [f"image {digest}\n" for digest in images])
