"""`stripefs cache ls|verify|evict|pin|unpin` and `stripefs warm PATH…`: the cache on local disk."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stripefs import config as configuration
from stripefs.cli.commands import SettingsCommand, config_flag, given, json_flag, settings_flags
from stripefs.cli.output import columns, duration, status_line, tell
from stripefs.cli.output import rate as rate_in_words
from stripefs.cli.paths import configure_logs, place
from stripefs.config import STRIPEFS
from stripefs.errors import ConfigError, StoreError
from stripefs.units import format_size, parse_rate, shown

if TYPE_CHECKING:
    from stripefs.cache.cachedir import CacheDir, CachedVersion
    from stripefs.cache.quota import Quota
    from stripefs.cli.cache_warming import Warmed
    from stripefs.settings import Settings

__all__ = ["cache_command", "warm_command"]


_LEAST_KEY = 6
"""Hexadecimal digits of a key that name a version: few enough files are distinguished by them, and no file is called
so."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _flags(function: _F) -> _F:
    """The flags that all of these commands have."""
    return json_flag()(config_flag(settings_flags(also=["cache", "cache-size", "log-level"])(function)))


@click.group("cache", context_settings={"help_option_names": ["-h", "--help"]})
def cache_command() -> None:
    """List and manage the cached files on local disk.

    WHICH is a pattern as in --cache-match for paths of files, or of directories for all that is below; or the KEY that
    `ls` shows. Mounts may use the folder meanwhile.
    """


@cache_command.command("ls", cls=SettingsCommand)
@click.argument("which", nargs=-1)
@_flags
@click.pass_context
def ls(ctx: click.Context, which: tuple[str, ...], as_json: bool, config: str) -> None:
    """List the cached versions of files."""
    with _folder(ctx, config) as (place, room):
        found = _chosen(place, which)
        told = _usage_dict(place, room)
    if as_json:
        click.echo(json.dumps({**told, "versions": [_as_dict(version) for version in found]}, indent=2))
        return
    rows = [
        (
            version.name or "(unknown)",
            format_size(version.size),
            format_size(version.length) if version.length else "?",
            f"{duration(max(0.0, time.time() - version.used))} ago" if version.used else "",
            "being written" if version.writing else "pinned" if version.pinned else "",
            version.key.hex()[:12],
        )
        for version in sorted(found, key=lambda version: (version.name, -version.used))
    ]
    if rows:
        click.echo(columns(("file", "kept", "of", "used", "", "key"), rows))
    click.echo(f"{format_size(sum(version.size for version in found))} of {len(found)} versions in {place.root}")


@cache_command.command("verify", cls=SettingsCommand)
@click.argument("which", nargs=-1)
@_flags
@click.pass_context
def verify(ctx: click.Context, which: tuple[str, ...], as_json: bool, config: str) -> int:
    """Read all cached blocks and compare them with their checksums.

    Reads do so by themselves; this finds out before they come. Damaged blocks are dropped, and fetched again when
    they are wanted. The exit code is 3 if any were.
    """
    from stripefs.cache.cachedir import verify_version

    rows = []
    with _folder(ctx, config) as (place, _), status_line() as show:
        for version in _chosen(place, which):
            show(_called(version))
            rows.append((version, verify_version(place, version)))
    blocks, size = sum(found.blocks for _, found in rows), sum(found.size for _, found in rows)
    damaged = sum(found.damaged for _, found in rows)
    unreadable = [each for _, found in rows for each in found.unreadable]
    if as_json:
        bad = [{**_as_dict(version), "damaged": found.damaged} for version, found in rows if found.damaged]
        trouble = [{"path": path, "error": error} for path, error in unreadable]
        told = {"blocks": blocks, "bytes": size, "damaged": damaged, "versions": bad, "trouble": trouble}
        click.echo(json.dumps({"directory": place.directory, **told}, indent=2))
    else:
        for version, found in rows:
            if found.damaged:
                click.echo(f"{_called(version)}: {found.damaged} of {found.blocks} blocks were damaged")
        click.echo(f"{blocks} blocks, {format_size(size)}: {damaged} damaged")
    for path, error in unreadable:
        tell(f"{path}: {error}")
    return StoreError.exit_code if damaged or unreadable else 0


@cache_command.command("evict", cls=SettingsCommand)
@click.argument("which", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All versions, except pinned ones.")
@click.option("--pinned", is_flag=True, help="Pinned versions too.")
@_flags
@click.pass_context
def evict(
    ctx: click.Context, which: tuple[str, ...], everything: bool, pinned: bool, as_json: bool, config: str
) -> None:
    """Remove versions from the cache. Their readers go on, and fetch the rest from the store."""
    if bool(which) == everything:
        raise ConfigError("say what to remove", hint="name files or directories, or give --all")
    with _folder(ctx, config) as (place, room):
        chosen = (version for version in _chosen(place, which) if not version.writing)
        gone = [version for version in chosen if pinned or not version.pinned]
        freed = room.remove([version.key for version in gone])
        room.recount()
        told = _usage_dict(place, room)
    if as_json:
        removed = [_as_dict(version) for version in gone]
        click.echo(json.dumps({**told, "removed": removed, "freed_bytes": freed}, indent=2))
    else:
        click.echo(f"{len(gone)} versions ({format_size(freed)}) removed")


@cache_command.command("pin", cls=SettingsCommand)
@click.argument("which", nargs=-1, required=True)
@_flags
@click.pass_context
def pin(ctx: click.Context, which: tuple[str, ...], as_json: bool, config: str) -> None:
    """Keep versions, whatever room is needed, until they are unpinned. Their missing blocks may still come."""
    _pins(ctx, which, as_json, config, lambda place, key: place.pin(key), "pinned")


@cache_command.command("unpin", cls=SettingsCommand)
@click.argument("which", nargs=-1, required=True)
@_flags
@click.pass_context
def unpin(ctx: click.Context, which: tuple[str, ...], as_json: bool, config: str) -> None:
    """Let versions go again when room is needed."""
    _pins(ctx, which, as_json, config, lambda place, key: place.unpin(key), "unpinned")


def _pins(
    ctx: click.Context,
    which: tuple[str, ...],
    as_json: bool,
    config: str,
    act: Callable[[CacheDir, bytes], object],
    word: str,
) -> None:
    with _folder(ctx, config) as (place, room):
        chosen = {version.key for version in _chosen(place, which)}
        for key in chosen:
            act(place, key)
        told = _usage_dict(place, room)
        found = [version for version in _chosen(place, ()) if version.key in chosen]
    if as_json:
        click.echo(json.dumps({**told, "versions": [_as_dict(version) for version in found]}, indent=2))
    else:
        click.echo(f"{len(chosen)} versions {word}")


@contextmanager
def _folder(ctx: click.Context, config: str) -> Iterator[tuple[CacheDir, Quota]]:
    """The cache folder that flags, the environment or a file name. Raises ConfigError when none does; an OSError of the
    folder inside becomes a StoreError."""
    from stripefs.cache.cachedir import CacheDir
    from stripefs.cache.quota import Quota

    settings = configuration.resolve(given(ctx), config=config).cache
    if not settings.directory:
        raise ConfigError("no cache folder is named", hint="give --cache DIR, or set cache in [cache] of a file")
    place = CacheDir(settings.directory)
    place.check()
    try:
        yield place, Quota(place, settings.size)
    except OSError as error:
        raise StoreError(f"{error.filename or place.root}: {error.strerror}") from error


def _chosen(place: CacheDir, which: Sequence[str]) -> list[CachedVersion]:
    """The versions that one of these names; all for none. Raises ConfigError where one names nothing."""
    from stripefs.cache.cachedir import cached_versions

    versions = list(cached_versions(place))
    if not which:
        return versions
    chosen: dict[bytes, CachedVersion] = {}
    for word in which:
        named = [version for version in versions if _names(word, version)]
        if not named:
            raise ConfigError(f"nothing that is kept is called {word!r}", hint="stripefs cache ls shows what there is")
        chosen |= {version.key: version for version in named}
    return list(chosen.values())


def _names(word: str, version: CachedVersion) -> bool:
    from stripefs.cache.policy import matches_below

    if len(word) >= _LEAST_KEY and version.key.hex().startswith(word.lower()):
        return True
    return bool(version.name) and matches_below(version.name, word)


def _called(version: CachedVersion) -> str:
    return version.name or version.key.hex()


def _usage_dict(place: CacheDir, room: Quota) -> dict[str, Any]:
    return {"directory": place.directory, "used_bytes": room.used(), "limit_bytes": room.limit()}


def _as_dict(version: CachedVersion) -> dict[str, Any]:
    """The --json form; sizes in bytes, times in seconds since 1970."""
    known = {name: version.about.get(name) for name in ("source", "path", "length", "mtime_ns", "file_id")}
    return {
        "key": version.key.hex(),
        **known,
        "bytes": version.size,
        "used_at": version.used,
        "pinned": version.pinned,
        "writing": version.writing,
        "checkpoint": version.about.get("checkpoint", ""),
        "keep_newest": version.about.get("keep", 0),
    }


@click.command("warm", cls=SettingsCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-w", "--wait", is_flag=True, help="Come back when all is on disk, not at once.")
@click.option("--rate", default="0", metavar="RATE", help="Read at most so much a second, such as 200MB/s.  [no limit]")
@json_flag("Print one JSON object; implies --wait.")
@config_flag
@settings_flags("store", "read", "cache", also=["log-level", "trust-pool"])
@click.pass_context
def warm_command(ctx: click.Context, paths: tuple[str, ...], wait: bool, rate: str, as_json: bool, config: str) -> int:
    """Bring files into the cache on local disk, all files of directories too, so that reading them asks no data host.

    Each PATH is a file or directory inside a stripefs mount, a store's URL, or a local path. A mount's own cache is
    used unless --cache names another. Blocks that are here already are left as they are, so that warming may
    be broken off and begun anew. Without --wait it goes on in the background; the same command with --wait then waits
    for it.
    """
    limit = int(parse_rate(rate))
    flags = given(ctx)
    several = [(path, *place(path, flags, config)) for path in paths]
    for path, settings, _ in several:
        if not settings.cache.directory:
            raise ConfigError(f"{path}: no cache folder is named", hint="give --cache DIR, the one of the mounts")
    if not (wait or as_json):
        return _behind(ctx, paths, rate, config)
    configure_logs(ctx, several[0][1])
    code = 0
    told = []
    for path, settings, inside in several:
        began = time.monotonic()
        found, source = _warm(settings, inside, limit)
        if as_json:
            told.append(_warmed_dict(path, source, found, time.monotonic() - began))
        else:
            click.echo(_describe_warmed(path, found, time.monotonic() - began))
        for file, error in found.trouble:
            tell(f"{shown(file)}: {error}")
        for file in found.missing:
            tell(f"{shown(file)}: not all of it could be kept", "see --cache-size and the room on that disk")
        code = code if found.whole else StoreError.exit_code
    if as_json:
        click.echo(json.dumps({"paths": told}, indent=2))
    return code


def _warm(settings: Settings, inside: bytes, limit: int) -> tuple[Warmed, str]:
    from stripefs.cli.cache_warming import Steady, warm_tree

    with status_line() as show:

        def progress(found: Warmed, file: str) -> None:
            show(f"{format_size(found.here_before + found.fetched)} of {format_size(found.size)}: {file}")

        return warm_tree(settings, inside, Steady(limit), progress)


def _describe_warmed(path: str, found: Warmed, seconds: float) -> str:
    """One line for people."""
    said = [f"{format_size(found.fetched)} fetched at {rate_in_words(found.fetched / max(seconds, 0.001))}"]
    said.append(f"{format_size(found.here_before)} here before")
    if found.unkept:
        said.append(f"{len(found.unkept)} files are none that the cache keeps")
    if found.missing or found.trouble:
        said.append(f"{len(found.missing) + len(found.trouble)} files are not whole")
    return f"{path}: {found.files} files, {format_size(found.size)}: {', '.join(said)}"


def _warmed_dict(path: str, source: str, found: Warmed, seconds: float) -> dict[str, Any]:
    """The --json form of one path; sizes in bytes."""
    return {
        "path": path,
        "source": source,
        "files": found.files,
        "bytes": found.size,
        "here_before": found.here_before,
        "fetched": found.fetched,
        "seconds": round(seconds, 3),
        "whole": found.whole,
        "missing": [shown(file) for file in found.missing],
        "unkept": [shown(file) for file in found.unkept],
        "trouble": [{"path": shown(file), "error": error} for file, error in found.trouble],
    }


def _behind(ctx: click.Context, paths: Sequence[str], rate: str, config: str) -> int:
    """The same command with --wait, in the background; it goes on when this shell ends."""
    from stripefs.fuse.control import make_directory, runtime_directory

    log = make_directory(runtime_directory()) / "warm.log"
    flags = [STRIPEFS.as_flag(name, text) for name, (text, _) in given(ctx).items()]
    named = ["--config", config] if config else []
    start = "import sys; from stripefs.cli.main import PROGRAM; sys.exit(PROGRAM.main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", start, "warm", "--wait", "--rate", rate, *named, *flags, "--", *paths]
    with open(os.devnull, "rb") as nothing, open(log, "ab") as output:
        standard = [(os.POSIX_SPAWN_DUP2, *pair) for pair in ((nothing.fileno(), 0), (output.fileno(), 1), (1, 2))]
        # This process does not wait for it, which an object of `subprocess` would complain about.
        process = os.posix_spawn(sys.executable, command, os.environ, file_actions=standard, setsid=True)
    click.echo(f"warming in the background: process {process}, log {log}")
    return 0
