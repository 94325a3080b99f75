"""`stripefs warm PATH…`: bring files into the cache before a job wants them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from stripefs.cli.exit_errors import tell
from stripefs.cli.flags import SettingsCommand, given, settings_flags
from stripefs.cli.output import rate as rate_in_words
from stripefs.cli.output import status_line
from stripefs.cli.paths import place
from stripefs.config import STRIPEFS
from stripefs.errors import ConfigError, StoreError
from stripefs.units import format_size, parse_rate, shown

if TYPE_CHECKING:
    from stripefs.cli.cache_warming import Warmed
    from stripefs.settings import Settings

__all__ = ["command", "describe"]


@click.command("warm", cls=SettingsCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-w", "--wait", is_flag=True, help="Come back when all is on disk, not at once.")
@click.option("--rate", default="0", metavar="RATE", help="Read at most so much a second, such as 200MB/s.  [no limit]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; implies --wait.")
@click.option("--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones.")
@settings_flags("store", "read", "cache", also=["log-level", "trust-pool"])
@click.pass_context
def command(ctx: click.Context, paths: tuple[str, ...], wait: bool, rate: str, as_json: bool, config: str) -> int:
    """Bring files into the cache on local disk, all files of directories too, so that reading them asks no data host.

    Each PATH is a file or directory inside a stripefs mount, a store's URL, or a local path. A mount's own cache is
    used unless --cache names another. What is here already is left as it is, so that warming may be broken off and
    begun anew. Without --wait it goes on in the background; the same command with --wait then waits for it.
    """
    limit = int(parse_rate(rate))
    flags = given(ctx)
    several = [(path, *place(path, flags, config)) for path in paths]
    for path, settings, _ in several:
        if not settings.cache.directory:
            raise ConfigError(f"{path}: no cache folder is named", hint="give --cache DIR, the one of the mounts")
    if not (wait or as_json):
        return _behind(ctx, paths, rate, config)
    from stripefs import logs

    logs.configure("text", several[0][1].mount.log_level if "log-level" in flags else "error")
    code = 0
    told = []
    for path, settings, inside in several:
        began = time.monotonic()
        found, source = _warm(settings, inside, limit)
        if as_json:
            told.append(_as_dict(path, source, found, time.monotonic() - began))
        else:
            click.echo(describe(path, found, time.monotonic() - began))
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


def describe(path: str, found: Warmed, seconds: float) -> str:
    """One line for people."""
    said = [f"{format_size(found.fetched)} fetched at {rate_in_words(found.fetched / max(seconds, 0.001))}"]
    said.append(f"{format_size(found.here_before)} here before")
    if found.unkept:
        said.append(f"{len(found.unkept)} files are none that the cache keeps")
    if found.missing or found.trouble:
        said.append(f"{len(found.missing) + len(found.trouble)} files are not whole")
    return f"{path}: {found.files} files, {format_size(found.size)}: {', '.join(said)}"


def _as_dict(path: str, source: str, found: Warmed, seconds: float) -> dict[str, Any]:
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
    start = "import sys; from stripefs.cli.app import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", start, "warm", "--wait", "--rate", rate, *named, *flags, "--", *paths]
    with open(os.devnull, "rb") as nothing, open(log, "ab") as output:
        standard = [(os.POSIX_SPAWN_DUP2, *pair) for pair in ((nothing.fileno(), 0), (output.fileno(), 1), (1, 2))]
        # This process does not wait for it, which an object of `subprocess` would complain about.
        process = os.posix_spawn(sys.executable, command, os.environ, file_actions=standard, setsid=True)
    click.echo(f"warming in the background: process {process}, log {log}")
    return 0
