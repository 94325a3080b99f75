"""Parts of many files at once: each file is opened once, all that is wanted is read side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import trio

from stripefs.api.errors import as_os_error
from stripefs.api.reading import RANGES_AT_ONCE, read_into
from stripefs.api.source import Opened
from stripefs.api.sources import Sources, Where
from stripefs.errors import StripefsError
from stripefs.store.allocator import new_bytes

__all__ = ["Path", "Request", "fetch"]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path in a source, from its root; a slash in front changes nothing."""

Request = tuple[Path, int | None, int | None]
"""A path, and where to begin and to end, as in slices: negative ones count from the end."""


async def fetch(
    sources: Sources,
    where: Where,
    requests: Sequence[tuple[bytes, int | None, int | None]],
    name: Callable[[bytes], str],
) -> list[bytes | OSError]:
    """For each request its bytes, or its error. `name` makes a URL of a path."""
    answers: list[bytes | OSError] = [b""] * len(requests)
    by_path: dict[bytes, list[int]] = {}
    for index, (path, _, _) in enumerate(requests):
        by_path.setdefault(path, []).append(index)
    limiter = trio.CapacityLimiter(RANGES_AT_ONCE)

    async def part(opened: Opened, index: int) -> None:
        path, start, end = requests[index]
        start, end, _ = slice(start, end).indices(opened.status.length)
        answer, buffer = new_bytes(max(0, end - start))
        try:
            async with limiter:
                await read_into(opened.file, start, buffer)
            answers[index] = answer
        except StripefsError as error:
            answers[index] = as_os_error(error, name(path))

    async def one(path: bytes) -> None:
        try:
            opened = await sources.open(where, path)
        except StripefsError as error:
            for index in by_path[path]:
                answers[index] = as_os_error(error, name(path))
            return
        try:
            async with trio.open_nursery() as nursery:
                for index in by_path[path]:
                    nursery.start_soon(part, opened, index)
        finally:
            with trio.CancelScope(shield=True):
                await opened.close()

    async with trio.open_nursery() as nursery:
        for path in by_path:
            nursery.start_soon(one, path)
    return answers
