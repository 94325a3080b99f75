"""`stripefs info PATH`: the layout of a file in its store, its parts, and its distribution over the data hosts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from stripefs.cli.commands import SettingsCommand, config_flag, given, json_flag, settings_flags
from stripefs.cli.output import columns, table, tell
from stripefs.cli.paths import configure_logs, opened_file, place
from stripefs.errors import IsADirectory, StoreError
from stripefs.format.manifest import Manifest
from stripefs.store.base import Block, Kind, Store
from stripefs.store.striped import StripedStore
from stripefs.units import format_size, shown

__all__ = ["Facts", "PartPlacement", "command", "describe", "gather"]

AT_ONCE = 32
"""Parts asked for their blocks at once."""


@dataclass(frozen=True, slots=True)
class PartPlacement:
    """A part as it stands in the store: `hosts` hold all of it or some."""

    name: str
    length: int
    hosts: tuple[str, ...]


@dataclass(slots=True)
class Facts:
    """Sizes in bytes. hosts: bytes that each holds of the file, all replicas; live_hosts: number of the store's.

    width: parts that are written at once in the last segment, 0 for files that are not striped. pool: the directory,
    on the store's service, that the parts of a striped file lie below. blocks: of the store, in all; thin_blocks: those
    that have fewer replicas than `replication`; both 0 where the store names no hosts. idle_hosts: live ones that hold
    nothing of it. balance: the bytes of the fullest host over the mean of all live ones, 0 where the store does not say
    where bytes lie.
    """

    source: str
    path: str
    layout: str
    length: int
    version: str = ""
    unit: int = 0
    width: int = 0
    segments: int = 0
    pool: str = ""
    block_size: int = 0
    blocks: int = 0
    thin_blocks: int = 0
    replication: int = 0
    live_hosts: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    idle_hosts: list[str] = field(default_factory=list)
    parts: list[PartPlacement] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    @property
    def balance(self) -> float:
        return max(self.hosts.values()) / self.mean if self.mean else 0.0

    @property
    def mean(self) -> float:
        """Bytes that each host would hold if the file lay evenly over all that are live."""
        return sum(self.hosts.values()) / max(1, self.live_hosts, len(self.hosts))

    def as_dict(self) -> dict[str, Any]:
        """The --json form."""
        return asdict(self) | {"balance": round(self.balance, 3)}


def gather(view: StripedStore, path: bytes) -> Facts:
    """Everything about the file at `path` of a store. Parts and blocks that are missing are told in `trouble`.

    Raises IsADirectory, and what `Store.open` raises.
    """
    store = view.inner
    status = store.stat(path)
    if status.kind is Kind.DIRECTORY:
        raise IsADirectory(f"{shown(path)} is a directory", hint="name a file")
    manifest = view.manifest(path)
    facts = Facts(store.url, shown(path), "ordinary", status.length)
    live = [host.name for host in store.hosts() if host.live]
    facts.live_hosts = len(live)
    if manifest is not None:
        found = manifest
        facts.pool = shown(found.pool if view.foreign(found.pool) else view.pool)
        view.in_pool(manifest.pool, lambda store, pool: _of_striped(facts, store, found, pool))
    else:
        facts.block_size, facts.replication = status.block_size, status.replication
        _count(facts, _blocks(store, path)[1], "")
    facts.idle_hosts = sorted(set(live) - facts.hosts.keys()) if facts.hosts else []
    return facts


def _of_striped(facts: Facts, store: Store, manifest: Manifest, pool: bytes) -> None:
    facts.layout, facts.length, facts.unit = "striped", manifest.length, manifest.unit
    facts.version = f"{manifest.version}.{manifest.generation}"
    facts.segments = len(manifest.segments)
    facts.width = len(manifest.segments[-1].parts) if manifest.segments else 0

    def look(index: int) -> tuple[int, Sequence[Block]] | StoreError:
        try:
            return _blocks(store, manifest.parts[index].path(pool))
        except StoreError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="info") as threads:
        for part, found in zip(manifest.parts, threads.map(look, range(len(manifest.parts))), strict=True):
            name = f"{part.version}/{part.number}"
            if isinstance(found, StoreError):
                facts.trouble.append(f"part {name}: {found.message}")
                continue
            facts.replication, blocks = found
            length = blocks[-1].offset + blocks[-1].length if blocks else 0
            if length != part.length:
                facts.trouble.append(f"part {name} has {length} bytes instead of {part.length}")
            _count(facts, blocks, f"part {name}: ")
            facts.parts.append(
                PartPlacement(name, part.length, tuple(dict.fromkeys(h for block in blocks for h in block.hosts)))
            )


def _blocks(store: Store, path: bytes) -> tuple[int, Sequence[Block]]:
    """Replication and the blocks of a file."""
    handle = store.open(path)
    try:
        status = handle.status
        return status.replication, handle.locate(0, status.length) if status.length else ()
    finally:
        handle.close()


def _count(facts: Facts, blocks: Sequence[Block], whose: str) -> None:
    """`blocks` of the file, or of the part that `whose` names. A store without hosts does not say where bytes lie."""
    if facts.live_hosts:
        facts.blocks += len(blocks)
        facts.thin_blocks += sum(len(block.hosts) < facts.replication for block in blocks)
        if nowhere := [block for block in blocks if not block.hosts]:
            first = nowhere[0].offset
            facts.trouble.append(
                f"{whose}{len(nowhere)} of {len(blocks)} blocks lie on no live data host, the first at byte {first}"
            )
    held = Counter(facts.hosts)
    for block in blocks:
        for host in block.hosts:
            held[host] += block.length
    facts.hosts = dict(held)


_MOST = 32
"""Parts shown to people; --json has all."""

_MOST_IDLE = 4
"""Hosts without any of the file that are named."""


@click.command("info", cls=SettingsCommand)
@click.argument("path")
@json_flag()
@config_flag
@settings_flags("store", also=["log-level", "trust-pool"])
@click.pass_context
def command(ctx: click.Context, path: str, as_json: bool, config: str) -> int:
    """Show layout, parts and data hosts of a file, and how evenly its bytes lie over the hosts.

    PATH is a file inside a stripefs mount, a URL or a local path.
    """
    settings, inside = place(path, given(ctx), config)

    configure_logs(ctx, settings)
    with opened_file(settings, inside) as (source, file):
        facts = gather(source.view, file)
    click.echo(json.dumps(facts.as_dict(), indent=2) if as_json else describe(facts))
    for trouble in facts.trouble:
        tell(trouble)
    return StoreError.exit_code if facts.trouble else 0


def describe(facts: Facts) -> str:
    """The facts for people."""
    striped = facts.layout == "striped"
    size = f", of {format_size(facts.block_size)} at most" if facts.block_size else ""
    thin = f"; {facts.thin_blocks} of {facts.blocks} blocks have less" if facts.thin_blocks else ""
    text = table(
        [
            ("file", f"{facts.path}, {format_size(facts.length)}"),
            ("source", facts.source),
            ("layout", _layout(facts)),
            ("version", facts.version),
            ("pool", facts.pool),
            ("parts", f"{len(facts.parts)} in {facts.segments} segments" if striped else ""),
            ("blocks", f"{facts.blocks}{size}" if facts.live_hosts else ""),
            ("replication", f"{facts.replication}{thin}" if facts.live_hosts else ""),
            (
                "hosts",
                f"{len(facts.hosts)} of {facts.live_hosts} live ones{_idle(facts.idle_hosts)}"
                if facts.live_hosts
                else "",
            ),
            ("balance", _balance(facts)),
        ]
    )
    hosts = [
        (name, format_size(size), f"{100 * size / facts.mean:.0f} %") for name, size in sorted(facts.hosts.items())
    ]
    parts = [(part.name, format_size(part.length), ", ".join(part.hosts)) for part in facts.parts[:_MOST]]
    if len(facts.parts) > _MOST:
        parts.append((f"and {len(facts.parts) - _MOST} more", "", ""))
    more = [
        "\n" + columns(("data host", "holds", "of the mean"), hosts) if hosts else "",
        "\n" + columns(("part", "length", "hosts"), parts) if parts else "",
    ]
    return "\n".join(part for part in (text, *more) if part)


def _layout(facts: Facts) -> str:
    if facts.layout != "striped":
        return "ordinary: one file that every client reads, as concat and plain make it"
    width = f" over {facts.width} parts at once" if facts.width else ""
    return f"striped: units of {format_size(facts.unit)}{width}, read through stripefs"


def _idle(hosts: Sequence[str]) -> str:
    if not hosts:
        return ""
    more = f" and {len(hosts) - _MOST_IDLE} more" if len(hosts) > _MOST_IDLE else ""
    return f"; nothing on {', '.join(hosts[:_MOST_IDLE])}{more}"


def _balance(facts: Facts) -> str:
    if not facts.balance:
        return ""
    return f"{facts.balance:.2f}, the fullest host against the mean of all live ones; 1 is even"
