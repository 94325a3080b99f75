"""`stripefs ls|cat|rm|du PATH…`: list, read and remove files of stores, and the space that they take."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from stripefs.cli.commands import SettingsCommand, config_flag, json_flag, settings_flags
from stripefs.cli.output import columns
from stripefs.cli.paths import Failures, begin, ensure_writable, named, written_name
from stripefs.errors import ConfigError, StripefsError
from stripefs.settings import MIB, redact
from stripefs.units import format_size, parse_size, shown

if TYPE_CHECKING:
    from stripefs.api import Entry, ReadFile
    from stripefs.api.tree_ops import Usage
    from stripefs.copy.tree import Place

__all__ = ["cat_command", "du_command", "ls_command", "rm_command"]


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
@json_flag()
@config_flag
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def ls_command(
    ctx: click.Context, paths: tuple[str, ...], long: bool, human: bool, recursive: bool, as_json: bool, config: str
) -> int:
    """List directories, in byte order of the names. A striped file is one file; hidden things are not shown.

    Each PATH is a file or directory inside a stripefs mount, a URL or a local path.
    """
    begin(ctx, config)
    failures = Failures()
    told: list[dict[str, Any]] = []
    first = True
    for path in paths:
        with failures.noted(path):
            for listed in _listed(named(ctx, path, config), failures, recursive=recursive):
                if as_json:
                    told += [_entry_dict(listed.place, entry, inside=listed.directory) for entry in listed.entries]
                    continue
                if listed.directory and (len(paths) > 1 or recursive):
                    click.echo(f"{listed.place}:" if first else f"\n{listed.place}:")
                first = False
                for line in _lines(listed.entries, "" if listed.directory else path, long=long, human=human):
                    click.echo(line)
    if as_json:
        click.echo(json.dumps({"entries": told, "trouble": failures.found}, indent=2))
    return failures.code


def _listed(place: Place, failures: Failures, *, recursive: bool) -> Iterator[_Listed]:
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
            with failures.noted(folder):
                entries = folder.files.scandir(folder.path)
        yield _Listed(folder, entries, directory=True)
        if recursive:
            below = [folder.below(os.fsencode(each.name)) for each in entries if each.type == "directory"]
            folders += reversed(below)


def _lines(entries: Sequence[Entry], name: str, *, long: bool, human: bool) -> Iterator[str]:
    """A line for each; `name` instead of its own, where that is given."""
    names = [name or _entry_name(entry) for entry in entries]
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


def _entry_dict(place: Place, entry: Entry, *, inside: bool) -> dict[str, Any]:
    """The --json form of an entry of the directory `place`, or of `place` itself. Sizes in bytes, mode in octal."""
    return {
        "path": str(place.below(os.fsencode(entry.name)) if inside else place),
        "name": _entry_name(entry),
        "type": entry.type,
        "size": entry.size,
        "mtime_ns": entry.mtime_ns,
        "mode": f"{entry.mode:04o}",
        "owner": entry.owner,
        "group": entry.group,
        "version": entry.version,
    }


def _entry_name(entry: Entry) -> str:
    return shown(os.fsencode(entry.name))


def _to_the_left(words: Sequence[str]) -> list[str]:
    width = max(map(len, words), default=0)
    return [word.ljust(width) for word in words]


_STEP = 8 * MIB
"""Bytes read at once: a range of the reader, which looks ahead for what follows."""


@click.command("cat", cls=SettingsCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--offset", default="0", metavar="SIZE", help="Begin so far behind the start of each file.  [0]")
@click.option("--length", default="", metavar="SIZE", help="Write so much of each file at most.  [to its end]")
@config_flag
@settings_flags("store", "read", also=["log-level", "trust-pool"])
@click.pass_context
def cat_command(ctx: click.Context, paths: tuple[str, ...], offset: str, length: str, config: str) -> int:
    """Write files to standard output, read from many data hosts at once.

    Each PATH is a file inside a stripefs mount, a URL or a local path. Of each file one version is written, or it ends
    with an error.
    """
    begin(ctx, config)
    start, most = parse_size(offset), parse_size(length) if length else None
    failures = Failures()
    for path in paths:
        with failures.noted(path):
            place = named(ctx, path, config)
            with place.files.open(place.path) as file:
                _write(file, start, file.size if most is None else min(file.size, start + most))
    return failures.code


def _write(file: ReadFile, at: int, end: int) -> None:
    """The bytes [at, end) of a file go to standard output."""
    buffer = memoryview(bytearray(min(_STEP, max(0, end - at))))
    while at < end:
        view = buffer[: file.pread_into(buffer[: end - at], at)]
        at += len(view)
        try:
            while view:
                view = view[os.write(sys.stdout.fileno(), view) :]
        except BrokenPipeError:
            raise
        except OSError as error:  # which concerns all files
            raise StripefsError(f"standard output: {error.strerror}") from error


@click.command("rm", cls=SettingsCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-r", "-R", "--recursive", is_flag=True, help="Remove directories, with all that is below them.")
@click.option("-f", "--force", is_flag=True, help="Ignore missing names.")
@config_flag
@settings_flags("store", also=["grace", "log-level", "trust-pool"])
@click.pass_context
def rm_command(ctx: click.Context, paths: tuple[str, ...], recursive: bool, force: bool, config: str) -> int:
    """Remove files, and directories with -r. Files that are being written are left alone.

    Each PATH is inside a stripefs mount, a URL or a local path; links of this host are removed, not followed. Parts of
    striped files stay for their readers, until a gc a day later; --grace 0s removes them at once.
    """
    begin(ctx, config)
    failures = Failures()
    for path in paths:
        ensure_writable(path)
        with failures.noted(path):
            place = named(ctx, path, config, follow=False)
            if not written_name(path) or place.path == b"/":
                raise ConfigError(f"{redact(path)} is no name that could be removed", hint="name what is below it")
            entry = place.stat()
            if entry is None:
                if not force:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            elif entry.type != "directory":
                place.files.remove(place.path)
            elif recursive:
                place.files.rmtree(place.path)
            else:
                raise IsADirectoryError(errno.EISDIR, "it is a directory, which -r removes")
    return failures.code


@click.command("du", cls=SettingsCommand, context_settings={"help_option_names": ["--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-h", "--human", is_flag=True, help="Sizes in KiB, MiB, …")
@click.option("-s", "--summary", is_flag=True, help="One line for each PATH, none for directories below.")
@json_flag()
@config_flag
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def du_command(
    ctx: click.Context, paths: tuple[str, ...], human: bool, summary: bool, as_json: bool, config: str
) -> int:
    """Show the bytes of directories, with all below them, and their bytes in the store.

    Each PATH is a file or directory inside a stripefs mount, a URL or a local path. `size` is what programs read in the
    files; `stored` counts all replicas, and of striped files the parts with their checksums. Sizes are in bytes.
    """
    begin(ctx, config)
    failures = Failures()
    found: list[tuple[str, Usage]] = []
    for path in paths:
        with failures.noted(path):
            place = named(ctx, path, config)
            usages = place.files.usage(place.path, lambda error: failures.add(str(error.filename), error))
            found += [(_usage_name(place, usage), usage) for usage in (usages[-1:] if summary else usages)]
    if as_json:
        document = {"paths": [_usage_dict(name, usage) for name, usage in found], "trouble": failures.found}
        click.echo(json.dumps(document, indent=2))
    elif found:
        rows = [(name, str(usage.files), *_usage_sizes(usage, human)) for name, usage in found]
        click.echo(columns(("path", "files", "size", "stored"), rows))
    return failures.code


def _usage_name(place: Place, usage: Usage) -> str:
    return str(dataclasses.replace(place, path=os.fsencode(usage.path)))


def _usage_sizes(usage: Usage, human: bool) -> tuple[str, str]:
    return (format_size(usage.size), format_size(usage.stored)) if human else (str(usage.size), str(usage.stored))


def _usage_dict(name: str, usage: Usage) -> dict[str, Any]:
    return {"path": name, "files": usage.files, "bytes": usage.size, "stored_bytes": usage.stored}
