"""How much room files take: what they hold, and what the store keeps for that."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import trio

from stripefs.api.errors import as_os_error
from stripefs.api.sources import Sources, Where
from stripefs.errors import NotFound, StripefsError
from stripefs.layout.striped import STRIPED_ID, Manifest
from stripefs.store.base import Kind, Status
from stripefs.write.names import join

__all__ = ["Usage", "usage"]

_AT_ONCE = 32
"""Manifests read at once: a directory of striped files waits for the store's round trips."""


class Usage(NamedTuple):
    """What is at `path`, with all below it. Sizes in bytes.

    files: how many. size: what programs read in them. stored: what the store keeps for that, in all replicas where it
    has any: of a striped file its parts with their checksums and the manifest.
    """

    path: str
    files: int
    size: int
    stored: int


async def usage(
    sources: Sources, where: Where, path: bytes, name: Callable[[bytes], str]
) -> tuple[list[Usage], list[OSError]]:
    """What each directory from `path` down takes, those inside before the one they are in, or a file alone; and what
    could not be looked at. `name` makes a URL of a path. Raises StoreError where it is `path` itself."""
    view = await sources.view(where)
    limiter = trio.CapacityLimiter(_AT_ONCE)
    found: list[Usage] = []
    trouble: list[OSError] = []

    async def of_file(file: bytes, status: Status) -> Usage:
        stored = status.length
        if STRIPED_ID.search(status.file_id):
            async with limiter:
                stored = await _stored(sources, where, file) or stored
        return Usage(os.fsdecode(file), 1, status.length, stored * max(1, status.replication))

    async def of_folder(folder: bytes) -> Usage:
        inside: list[Usage] = []

        async def add(file: bytes, status: Status) -> None:
            try:
                inside.append(await of_file(file, status))
            except NotFound:
                pass  # it went since it was listed
            except StripefsError as error:
                trouble.append(as_os_error(error, name(file)))

        entries = await view.listing(folder)
        async with trio.open_nursery() as nursery:
            for status in entries:
                if status.kind is Kind.FILE:
                    nursery.start_soon(add, join(folder, status.name), status)
        for status in entries:
            if status.kind is Kind.DIRECTORY:
                below = join(folder, status.name)
                try:
                    inside.append(await of_folder(below))
                except NotFound:
                    pass
                except StripefsError as error:
                    trouble.append(as_os_error(error, name(below)))
        sums = [sum(column) for column in zip(*(each[1:] for each in inside), strict=True)] or [0, 0, 0]
        found.append(Usage(os.fsdecode(folder), *sums))
        return found[-1]

    status = await view.stat(path)
    if status.kind is Kind.DIRECTORY:
        await of_folder(path)
    else:
        found.append(await of_file(path, status))
    return found, trouble


async def _stored(sources: Sources, where: Where, path: bytes) -> int:
    """Bytes of all objects of a striped file, one replica of each; 0 where another file is there by now."""
    source, inner = await sources.at(where, path)
    manifest: Manifest | None = await source.calls.thread(f"look at {path!r}", source.store.manifest, inner)
    if manifest is None:
        return 0
    listed = manifest.parts_list()
    outside = len(listed[1]) if listed is not None else 0
    return len(manifest.to_bytes()) + outside + sum(part.length for part in manifest.parts)
