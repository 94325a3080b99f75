"""`stripefs cp SOURCE… DESTINATION`: copy files and directories from and to stores and this host."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import click

from stripefs.cli.commands import SettingsCommand, config_flag, given, json_flag, settings_flags
from stripefs.cli.output import ended_by_sigterm, rate, status_line, tell
from stripefs.cli.paths import begin, ends_with_slash, ensure_writable, named, plainly, reason, written_name
from stripefs.errors import ConfigError, StoreError
from stripefs.settings import redact
from stripefs.units import format_size

if TYPE_CHECKING:
    from stripefs.copy.copier import Copied, Failure, Named

__all__ = ["as_dict", "command", "describe"]

_AGAIN = "the same command goes on from there"


@click.command("cp", cls=SettingsCommand)
@click.argument("paths", nargs=-1, required=True, metavar="SOURCE... DESTINATION")
@click.option("-r", "-R", "--recursive", is_flag=True, help="Copy directories, with all that is below them.")
@click.option("-p", "--preserve", is_flag=True, help="Give copies the permissions and times of their sources.")
@click.option("-T", "--exact", is_flag=True, help="DESTINATION is the copy, not a directory to put it into.")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), default=8, metavar="N",
              help="Copy so many files at once.  [8]")  # fmt: skip
@click.option("--compare/--no-compare", default=True, help="Read the stored bytes again and compare them.  [on]")
@click.option("--root", default="", metavar="URL", help="The source that DESTINATION lies in, for striped files.")
@json_flag()
@config_flag
@settings_flags(
    "store", "read", also=["layout", "layout-for", "unit", "write-memory", "grace", "trust-pool", "log-level"]
)
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    recursive: bool,
    preserve: bool,
    exact: bool,
    jobs: int,
    compare: bool,
    root: str,
    as_json: bool,
    config: str,
) -> int:
    """Copy files and directories between stores and this host, from many data hosts to many.

    SOURCE and DESTINATION are paths inside stripefs mounts, URLs or local paths. As with cp, a directory takes copies
    under their own names, and so does a DESTINATION that ends with a slash, which is made. A file appears as a whole,
    and stored bytes are compared with read ones. The same command resumes an interrupted copy.
    """
    if len(paths) < 2:
        raise ConfigError("cp takes what is to be copied, and where to", hint="see stripefs cp --help")
    begin(ctx, config)
    *sources, target = paths
    ensure_writable(target)
    from stripefs.copy.copier import Copier, CopyOptions, CopyRequest, run_request

    there = _named(ctx, target, config, root)
    order = CopyRequest([_named(ctx, source, config) for source in sources], there, recursive, exact)
    if there.place.local and (ours := {"layout", "layout-for", "unit"} & given(ctx).keys()):
        raise ConfigError(
            f"--{min(ours)} says how files lie in a store, and {target} is a path of this host",
            hint=f"name it as a store: file://{os.path.abspath(target)}",
        )
    copier = Copier(CopyOptions(compare, preserve, jobs))
    began = time.monotonic()
    try:
        with ended_by_sigterm(), status_line() as show, plainly(there.place):
            run_request(order, copier, os.environ, lambda found: show(_progress(found, time.monotonic() - began)))
    except KeyboardInterrupt:
        for kept in copier.found.kept:
            tell(f"what has come of it is kept in {kept}", _AGAIN)
        raise
    return _report(copier.found, str(there.place), time.monotonic() - began, compare=compare, as_json=as_json)


def _named(ctx: click.Context, text: str, config: str, root: str = "") -> Named:
    from stripefs.copy.copier import Named

    with plainly(text):
        return Named(named(ctx, text, config, root=root), written_name(text), ends_with_slash(text))


def _progress(found: Copied, seconds: float) -> str:
    came = found.moved + found.resumed + found.skipped_size
    compared = f", compared {format_size(found.compared)}" if found.compared else ""
    speed = rate(found.moved / max(seconds, 0.001))
    return f"{format_size(came)} of {format_size(found.size)} at {speed}{compared}: {found.current}"


def _report(found: Copied, target: str, seconds: float, *, compare: bool, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(as_dict(found, target, seconds, compare=compare), indent=2))
    elif found.files or not found.failed:
        click.echo(describe(found, seconds, compare=compare))
    for failure in found.failed:
        tell(*_line(failure))
    for service in sorted(found.plain):
        tell(f"{redact(service).partition('?')[0]} keeps no permissions and no times, so -p has no effect there")
    if found.unnoted is not None:
        tell(f"what was copied could not be noted ({found.unnoted})", "broken off, it would begin anew")
    return StoreError.exit_code if found.failed else 0


def _line(failure: Failure) -> tuple[str, str]:
    """The message for a file that was not copied, and its hint."""
    what, hint = reason(failure.error, str(failure.source))
    if failure.target is not None:
        what = f"cannot copy {failure.source} to {failure.target}: {what}"
    elif not isinstance(failure.error, ConfigError):  # which names what it is about
        what = f"{failure.source}: {what}"
    return (f"{what}; what has come of it is kept in {failure.kept}", _AGAIN) if failure.kept else (what, hint)


def describe(found: Copied, seconds: float, *, compare: bool) -> str:
    """One line for people."""
    speed = rate(found.moved / max(seconds, 0.001))
    if not found.files:
        return "nothing was copied: there are no files, apart from names that stripefs keeps for itself (.stripefs, …)"
    said = [f"{found.done} of {found.files} files copied", f"{format_size(found.moved)} at {speed}"]
    if found.resumed:
        said.append(f"{format_size(found.resumed)} were there from before")
    if found.skipped:
        said.append(f"{found.skipped} files ({format_size(found.skipped_size)}) were copied before")
    said.append("compared with what is stored" if compare else "not compared with what is stored")
    return ", ".join(said)


def as_dict(found: Copied, target: str, seconds: float, *, compare: bool) -> dict[str, Any]:
    """The --json form; sizes in bytes."""
    return {
        "destination": target,
        "files": found.files,
        "bytes": found.size,
        "copied": found.done,
        "copied_bytes": found.moved,
        "resumed_bytes": found.resumed,
        "skipped": found.skipped,
        "skipped_bytes": found.skipped_size,
        "compared": compare,
        "seconds": round(seconds, 3),
        "trouble": [
            {
                "path": str(failure.source),
                "target": str(failure.target or ""),
                "error": reason(failure.error, str(failure.source))[0],
                "kept": failure.kept,
            }
            for failure in found.failed
        ],
    }
