"""`stripefs status [MOUNTPOINT]`: what the mounts of this host are doing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import click

from stripefs.cli.flags import SettingsCommand, mountpoints, settings_flags
from stripefs.cli.mounting import mounted_at
from stripefs.cli.show import columns, duration, rate, table
from stripefs.errors import MountError
from stripefs.mount import kernel
from stripefs.mount.control import find_mounts, query
from stripefs.mount.mounting import FSTYPE
from stripefs.units import format_size

__all__ = ["command", "describe"]


@click.command("status", cls=SettingsCommand)
@click.argument("mountpoint", required=False, shell_complete=mountpoints)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object for each mount.")
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
    """What a mount says of itself; for one that does not answer, that it does not."""
    try:
        return query(path, "status")
    except MountError as error:  # told in the place of what it would have said
        return {"mountpoint": path, "error": error.message, "hint": error.hint}


def describe(status: Mapping[str, Any]) -> str:
    """One mount for people; only what its status holds."""
    if "error" in status:
        return table([("mount", status["mountpoint"]), ("error", f"{status['error']}; {status['hint']}".rstrip("; "))])
    reader, requests = status.get("reader", {}), status.get("requests", {})
    text = table(
        [
            ("mount", f"{status['source']} on {status['mountpoint']}"),
            *((name, str(value)) for name, value in status.get("store", {}).items()),
            ("worker", _worker(status)),
            ("kernel", ", ".join(_tuning(status.get("kernel", {})))),
            ("served", _served(reader, requests)),
            *_reading(reader),
        ]
    )
    return "\n".join(part for part in (text, _files(reader), _hosts(reader)) if part)


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
    errors = ", ".join(f"{count} {name}" for name, count in sorted(reader["errors"].items()))
    return [
        (
            "memory",
            f"{format_size(memory['used'])} of {format_size(memory['budget'])}, {format_size(memory['peak'])} at most",
        ),
        ("under way", f"{reader['in_flight']} of {reader['threads']} reads of {format_size(reader['range_size'])}"),
        ("hedges", f"{reader['hedges']}, of which {reader['hedge_wins']} came first; {reader['retries']} retries"),
        ("wasted", f"{format_size(reader['bytes_wasted'])} of {format_size(reader['bytes_fetched'])} fetched"),
        ("errors", errors or "none"),
    ]


def _files(reader: Mapping[str, Any], most: int = 10) -> str:
    rows = [
        (file["path"], format_size(file["length"]), format_size(cursor["position"]), format_size(cursor["window"]))
        for file in reader.get("files", ())
        for cursor in file["cursors"]
    ]
    more = [(f"and {len(rows) - most} more", "", "", "")] if len(rows) > most else []
    return "\n" + columns(("file", "length", "position", "window"), rows[:most] + more) if rows else ""


def _hosts(reader: Mapping[str, Any]) -> str:
    rows = [
        (
            host["name"] or "(chosen by the client)",
            str(host["in_flight"]),
            format_size(host["bytes"]),
            str(host["errors"]),
            f"{host['avoided_seconds']:.0f} s: {host['reason']}" if host["avoided_seconds"] > 0 else "",
        )
        for host in reader.get("hosts", ())
    ]
    return "\n" + columns(("data host", "under way", "read", "errors", "avoided"), rows) if rows else ""
