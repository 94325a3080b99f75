"""`stripefs status [MOUNTPOINT]`: state of the mounts of this host."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from stripefs.cli.commands import SettingsCommand, json_flag, mountpoints, settings_flags
from stripefs.cli.mounting import mounted_at
from stripefs.cli.output import columns, duration, rate, table
from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.fuse.control import find_mounts, query
from stripefs.fuse.mounting import FSTYPE
from stripefs.units import format_size

__all__ = ["command", "describe"]

_MOST = 10
"""Files shown of those that are read, and of those that are written; --json has all."""


@click.command("status", cls=SettingsCommand)
@click.argument("mountpoint", required=False, shell_complete=mountpoints)
@json_flag("Print a JSON array with one object for each mount.")
@click.option("-w", "--watch", is_flag=True, help="Show it again every second until Ctrl-C.")
@settings_flags(also=["log-level"])
def command(mountpoint: str | None, as_json: bool, watch: bool) -> None:
    """Show rates, limits, faults and settings of the mount at MOUNTPOINT, or of all mounts of this user."""
    while True:
        statuses = [_status(path) for path in _chosen(mountpoint)]
        if as_json:
            click.echo(json.dumps(statuses, indent=None if watch else 2))
        else:
            if watch:
                click.clear()
            click.echo("\n\n".join(map(describe, statuses)) if statuses else "no mounts")
        if not watch:
            return
        time.sleep(1)


def _chosen(mountpoint: str | None) -> list[str]:
    """The mounts to ask, by mountpoint. Raises MountError when the one that was named cannot be asked."""
    served = {mount.mountpoint for mount in find_mounts()}
    if mountpoint is None:
        left = {mount.path for mount in kernel.mounts() if mount.fstype == FSTYPE and _owner(mount) == os.getuid()}
        return sorted(served | left)
    mount = mounted_at(mountpoint)
    if mount is None or mount.fstype != FSTYPE:
        raise MountError(f"{mountpoint} is not a mount of stripefs", hint="stripefs status lists them")
    if mount.path not in served and _owner(mount) != os.getuid():
        raise MountError(f"the mount at {mount.path} belongs to user {_owner(mount)}", hint="ask as that user")
    if mount.path not in served:
        raise MountError(
            f"the mount at {mount.path} is served by nobody", hint=f"take it away with stripefs umount {mount.path}"
        )
    return [mount.path]


def _owner(mount: kernel.MountPoint) -> int:
    """The user who mounted it, by the kernel's word."""
    words = dict(word.partition("=")[::2] for word in mount.super_options.split(","))
    return int(words["user_id"])


def _status(path: str) -> dict[str, Any]:
    """The status of a mount, or that it does not answer."""
    try:
        return query(path, "status")
    except MountError as error:  # told in the place of what it would have said
        return {"mountpoint": path, "error": error.message, "hint": error.hint}


def describe(status: Mapping[str, Any]) -> str:
    """One mount for people; only what its status holds."""
    if "error" in status:
        return table([("mount", status["mountpoint"]), ("error", f"{status['error']}; {status['hint']}".rstrip("; "))])
    reader, requests, writer = (status.get(name, {}) for name in ("reader", "requests", "writer"))
    text = table(
        [
            ("mount", f"{status['source']} on {status['mountpoint']}"),
            *((name, str(value)) for name, value in status.get("store", {}).items()),
            ("worker", _worker(status)),
            ("kernel", ", ".join(_tuning(status.get("kernel", {})))),
            ("served", _served(reader, requests)),
            *_reading(reader),
            *_cache(status.get("cache", {})),
            *_writing(writer, requests),
        ]
    )
    tables = (_files(reader), _hosts(reader), _drafts(writer), _send_hosts(writer))
    return "\n".join(part for part in (text, *tables) if part)


def _worker(status: Mapping[str, Any]) -> str:
    said = [f"process {status['worker_pid']}"] if "worker_pid" in status else []
    if "generation" in status:
        said.append(f"generation {status['generation']}, {status.get('restarts', 0)} restarts")
    if status.get("resend") is False:
        said.append("open files fail when it is replaced (needs kernel 6.9)")
    if "started_at" in status:
        said.append(f"up {duration(time.time() - status['started_at'])}")
    return ", ".join(said)


def _tuning(kernel_facts: Mapping[str, Any]) -> list[str]:
    told = []
    for name, fact in kernel_facts.items():
        if isinstance(fact, Mapping):
            limit = f" ({fact['limit']})" if fact.get("limit") else ""
            told.append(f"{name} {fact.get('now')}{limit}")
        else:
            told.append(f"{name} {fact}")
    return told


def _served(reader: Mapping[str, Any], requests: Mapping[str, Any]) -> str:
    said = [f"{rate(reader['throughput'])} now"] if "throughput" in reader else []
    if requests:
        said.append(f"{format_size(requests['read_bytes'])} so far, {requests['answered']} requests")
        said.append(f"{requests['failed']} failed")
    return ", ".join(said)


def _reading(reader: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not reader:
        return []
    memory = reader["memory"]
    return [
        (
            "memory",
            f"{format_size(memory['used'])} of {format_size(memory['budget'])}, {format_size(memory['peak'])} at most",
        ),
        ("under way", f"{reader['in_flight']} of {reader['threads']} reads of {format_size(reader['range_size'])}"),
        ("hedges", f"{reader['hedges']}, of which {reader['hedge_wins']} came first; {reader['retries']} retries"),
        ("wasted", f"{format_size(reader['bytes_wasted'])} of {format_size(reader['bytes_fetched'])} fetched"),
        ("errors", _counts(reader["errors"]) or "none"),
        *(("corrupt", message) for message in reader["corrupt"]),
    ]


def _cache(cache: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not cache:
        return []
    said = [f"{format_size(cache['hit_bytes'])} from it, {format_size(cache['missed_bytes'])} past it"]
    if "used_bytes" in cache:
        said.append(f"{format_size(cache['used_bytes'])} of {format_size(cache['limit_bytes'])} in use")
    if cache["unfilled_bytes"]:
        said.append(f"{format_size(cache['unfilled_bytes'])} not kept")
    if cache["damaged"] or cache["disk_errors"]:
        said.append(f"{cache['damaged']} damaged blocks, {cache['disk_errors']} errors of the disk")
    return [("cache", f"{cache['directory']}: {', '.join(said)}")]


def _writing(writer: Mapping[str, Any], requests: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not writer:
        return []
    used, limit = format_size(writer["memory_bytes"]), format_size(writer["memory_limit_bytes"])
    waits = f", {writer['memory_waits']} writes waited {duration(writer['memory_waited_seconds'])} in all"
    buried = writer["buried_versions"]
    kept = f"; {_some(buried, 'replaced one')} kept for readers" if buried else ""
    sent = f"{writer['parts_under_way']} under way, {writer['parts_waiting']} wait for a host"
    rows = [
        (
            "written",
            f"{rate(writer['throughput'])} now, {format_size(requests.get('written_bytes', 0))} so far, "
            f"{format_size(writer['sent_bytes'])} sent; {_some(writer['files'], 'file')} open",
        ),
        ("write memory", f"{used} of {limit}{waits if writer['memory_waits'] else ''}"),
        ("parts", f"{sent}; {_some(writer['retries'], 'retry', 'retries')}"),
        ("published", f"{_some(writer['published_versions'], 'version')}{kept}"),
        ("write errors", _counts(writer["errors"]) or "none"),
        ("lost", _counts(writer["lost"])),
    ]
    if "staged_bytes" in writer:
        rows.append(("staged", f"{format_size(writer['staged_bytes'])} of {format_size(writer['staging_size'])}"))
    if (last := writer["last_error"]) is not None:
        rows.append(("last error", f"{duration(max(0.0, time.time() - last['at']))} ago: {last['message']}"))
    return rows


def _counts(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(errors.items()))


def _some(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def _files(reader: Mapping[str, Any]) -> str:
    rows = [
        (file["path"], format_size(file["length"]), format_size(cursor["position"]), format_size(cursor["window"]))
        for file in reader.get("files", ())
        for cursor in file["cursors"]
    ]
    return _first(("file", "length", "position", "window"), rows)


def _drafts(writer: Mapping[str, Any]) -> str:
    rows = [
        (draft["path"], draft["layout"] or "not settled", format_size(draft["length"]), format_size(draft["memory"]))
        for draft in writer.get("drafts", ())
    ]
    return _first(("file being written", "layout", "length", "in memory"), rows)


def _first(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of a few rows, and how many more there are."""
    left_out = len(rows) - _MOST
    more = [(f"and {left_out} more", *("",) * (len(heads) - 1))] if left_out > 0 else []
    return "\n" + columns(heads, [*rows[:_MOST], *more]) if rows else ""


def _hosts(reader: Mapping[str, Any]) -> str:
    rows = [
        (
            host["name"] or "(chosen by the client)",
            str(host["in_flight"]),
            format_size(host["bytes"]),
            str(host["errors"]),
            _avoided(host),
        )
        for host in reader.get("hosts", ())
    ]
    return "\n" + columns(("data host", "under way", "read", "errors", "avoided"), rows) if rows else ""


def _send_hosts(writer: Mapping[str, Any]) -> str:
    rows = [
        (
            host["name"] or "(chosen by the store)",
            str(host["parts"]),
            str(host["files"]),
            format_size(host["bytes"]),
            str(host["errors"]),
            _avoided(host),
        )
        for host in writer.get("hosts", ())
    ]
    used = writer.get("sent_bytes") or writer.get("errors")
    return "\n" + columns(("data host", "parts", "files", "sent", "errors", "avoided"), rows) if rows and used else ""


def _avoided(host: Mapping[str, Any]) -> str:
    return f"{host['avoided_seconds']:.0f} s: {host['reason']}" if host["avoided_seconds"] > 0 else ""
