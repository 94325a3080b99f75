"""`stripefs ls PATH…`: list directories."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from stripefs.cli.flags import SettingsCommand, settings_flags
from stripefs.cli.paths import Troubles, begin, named
from stripefs.units import format_size, shown

if TYPE_CHECKING:
    from stripefs.api import Entry
    from stripefs.api.place import Place

__all__ = ["as_dict", "command", "lines"]

_LETTERS = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}


class _Listed(NamedTuple):
    """A directory that was named, or is below one, with its entries; a file is its own only entry."""

    place: Place
    entries: Sequence[Entry]
    directory: bool


@click.command("ls", cls=SettingsCommand, context_settings={"help_option_names": ["--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-l", "--long", "long", is_flag=True, help="Permissions, owner, group, size and time too.")
@click.option("-h", "--human", is_flag=True, help="Sizes in KiB, MiB, …")
@click.option("-R", "--recursive", is_flag=True, help="Directories below too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def command(
    ctx: click.Context, paths: tuple[str, ...], long: bool, human: bool, recursive: bool, as_json: bool, config: str
) -> int:
    """List directories, in byte order of the names. A striped file is one file; hidden things are not shown.

    Each PATH is a file or directory inside a stripefs mount, a URL or a local path.
    """
    begin(ctx, config)
    troubles = Troubles()
    told: list[dict[str, Any]] = []
    first = True
    for path in paths:
        with troubles.noted(path):
            for listed in _listed(named(ctx, path, config), troubles, recursive=recursive):
                if as_json:
                    told += [as_dict(listed.place, entry, inside=listed.directory) for entry in listed.entries]
                    continue
                if listed.directory and (len(paths) > 1 or recursive):
                    click.echo(f"{listed.place}:" if first else f"\n{listed.place}:")
                first = False
                for line in lines(listed.entries, "" if listed.directory else path, long=long, human=human):
                    click.echo(line)
    if as_json:
        click.echo(json.dumps({"entries": told, "trouble": troubles.found}, indent=2))
    return troubles.code


def _listed(place: Place, troubles: Troubles, *, recursive: bool) -> Iterator[_Listed]:
    entry = place.files.stat(place.path)
    if entry.type != "directory":
        yield _Listed(place, [entry], directory=False)
        return
    folders = [place]
    while folders:
        folder = folders.pop()
        if folder is place:
            entries = folder.files.scandir(folder.path)
        else:
            entries = []
            with troubles.noted(folder):
                entries = folder.files.scandir(folder.path)
        yield _Listed(folder, entries, directory=True)
        if recursive:
            below = [folder.below(os.fsencode(each.name)) for each in entries if each.type == "directory"]
            folders += reversed(below)


def lines(entries: Sequence[Entry], name: str, *, long: bool, human: bool) -> Iterator[str]:
    """A line for each; `name` instead of its own, where that is given."""
    names = [name or _name(entry) for entry in entries]
    if not long:
        yield from names
        return
    sizes = [format_size(entry.size) if human else str(entry.size) for entry in entries]
    columns = [
        [stat.filemode(_LETTERS.get(entry.type, 0) | entry.mode) for entry in entries],
        _to_the_left([entry.owner or "-" for entry in entries]),
        _to_the_left([entry.group or "-" for entry in entries]),
        [size.rjust(max(map(len, sizes))) for size in sizes],
        [time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.mtime)) for entry in entries],
        names,
    ]
    yield from map("  ".join, zip(*columns, strict=True))


def as_dict(place: Place, entry: Entry, *, inside: bool) -> dict[str, Any]:
    """The --json form of an entry of the directory `place`, or of `place` itself. Sizes in bytes, mode in octal."""
    return {
        "path": str(place.below(os.fsencode(entry.name)) if inside else place),
        "name": _name(entry),
        "type": entry.type,
        "size": entry.size,
        "mtime_ns": entry.mtime_ns,
        "mode": f"{entry.mode:04o}",
        "owner": entry.owner,
        "group": entry.group,
        "version": entry.version,
    }


def _name(entry: Entry) -> str:
    return shown(os.fsencode(entry.name))


def _to_the_left(words: Sequence[str]) -> list[str]:
    width = max(map(len, words), default=0)
    return [word.ljust(width) for word in words]
