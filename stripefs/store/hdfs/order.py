"""HDFS's order of names into byte order.

The NameNode sorts names by their UTF-8 bytes taken as *signed* numbers: "é" (0xc3 0xa9) comes before "a". Names of
ASCII alone are in byte order already. A name whose first byte outside ASCII stands at k is held back while names with
the same k bytes before still arrive, since only those can sort before it. So a listing of ASCII names streams without
delay, and of the others only one group's names wait in memory (all of them where k = 0).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from stripefs.store.base import Status

__all__ = ["byte_order"]


def byte_order(batches: Iterator[Sequence[Status]], after: bytes = b"") -> Iterator[Sequence[Status]]:
    """The entries of `batches` that sort after `after`, in byte order of their names, in non-empty batches.

    `batches` holds each name once, in signed or in unsigned byte order.
    """
    held: list[tuple[bytes, bytes, Status]] = []
    for batch in batches:
        ready = []
        for entry in batch:
            while held and not entry.name.startswith(held[0][1]):
                ready.append(heapq.heappop(held)[2])
            common = _ascii_prefix(entry.name)
            if len(common) < len(entry.name):
                heapq.heappush(held, (entry.name, common, entry))
            else:
                ready.append(entry)
        ready = [entry for entry in ready if entry.name > after]
        if ready:
            yield ready
    rest = [entry for _, _, entry in sorted(held, key=lambda item: item[0]) if entry.name > after]
    if rest:
        yield rest


def _ascii_prefix(name: bytes) -> bytes:
    if name.isascii():
        return name
    return name[: next(k for k, byte in enumerate(name) if byte > 0x7F)]
