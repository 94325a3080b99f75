"""Disk usage of files: their own bytes, and the bytes that the store keeps for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from stripefs.api.errors import as_os_error
from stripefs.api.sources import SourceAddress, Sources
from stripefs.errors import NotFound, StripefsError
from stripefs.format.manifest import STRIPED_ID, Manifest
from stripefs.store.base import Kind, Status
from stripefs.write.upload_names import join_path

__all__ = ["Usage", "usage"]

_AT_ONCE = 32
"""Manifests read at once: a directory of striped files waits for the store's round trips."""


class Usage(NamedTuple):
    """Usage of `path`, with all below it. Sizes in bytes.

    files: their number. size: bytes that programs read in them. stored: bytes that the store keeps for that, in all
    replicas where it has any: of a striped file its parts with their checksums and the manifest.
    """

    path: str
    files: int
    size: int
    stored: int


async def usage(
    sources: Sources, address: SourceAddress, path: bytes, name: Callable[[bytes], str]
) -> tuple[list[Usage], list[OSError]]:
    """Usage of each directory from `path` down, those inside before the one they are in, or a file alone; and what
    could not be looked at. `name` makes a URL of a path. Raises StoreError where it is `path` itself."""
    view = await sources.view(address)
    limiter = trio.CapacityLimiter(_AT_ONCE)
    errors: list[OSError] = []

    async def of_file(file: bytes, status: Status) -> Usage:
        stored = status.length
        if STRIPED_ID.search(status.file_id):
            async with limiter:
                stored = await _stored(sources, address, file) or stored
        return Usage(os.fsdecode(file), 1, status.length, stored * max(1, status.replication))

    async def of_folder(folder: bytes, above: list[int]) -> None:
        """Directories in it are done later, and add their sums to `above` then."""
        entries = await view.listing(folder)
        sums = [0, 0, 0]
        seen.append((folder, sums, above))

        async def add(file: bytes, status: Status) -> None:
            try:
                _add(sums, (await of_file(file, status))[1:])
            except NotFound:
                pass  # it went since it was listed
            except StripefsError as error:
                errors.append(as_os_error(error, name(file)))

        async with trio.open_nursery() as nursery:
            for status in entries:
                if status.kind is Kind.FILE:
                    nursery.start_soon(add, join_path(folder, status.name), status)
        remaining.extend((join_path(folder, status.name), sums) for status in entries if status.kind is Kind.DIRECTORY)

    status = await view.stat(path)
    if status.kind is not Kind.DIRECTORY:
        return [await of_file(path, status)], errors
    seen: list[tuple[bytes, list[int], list[int]]] = []  # each before what is in it, the last of a directory first
    remaining: list[tuple[bytes, list[int]]] = []
    await of_folder(path, [0, 0, 0])
    while remaining:
        folder, above = remaining.pop()
        try:
            await of_folder(folder, above)
        except NotFound:
            pass
        except StripefsError as error:
            errors.append(as_os_error(error, name(folder)))
    found = []
    for folder, sums, above in reversed(seen):
        _add(above, sums)
        found.append(Usage(os.fsdecode(folder), *sums))
    return found, errors


def _add(sums: list[int], more: Sequence[int]) -> None:
    sums[:] = [one + other for one, other in zip(sums, more, strict=True)]


async def _stored(sources: Sources, address: SourceAddress, path: bytes) -> int:
    """Bytes of all objects of a striped file, one replica of each; 0 where another file is there by now."""
    source, inner = await sources.at(address, path)
    manifest: Manifest | None = await source.calls.call(f"look at {path!r}", source.store.manifest, inner)
    if manifest is None:
        return 0
    listed = manifest.parts_list()
    outside = len(listed[1]) if listed is not None else 0
    return len(manifest.to_bytes()) + outside + sum(part.length for part in manifest.parts)
