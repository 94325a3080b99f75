"""Checksums of a striped file's parts: one for each check, in a table behind the bytes, with a digest of the table.

A check is `CHECK` bytes counted from a unit's start, shorter at the unit's end. The checksum verifies a whole check,
and the digest verifies the table.
"""

from __future__ import annotations

import xxhash

from stripefs.format.blocks import CHUNK

__all__ = ["CHECK", "DIGEST", "SUM", "PartTable", "check_sums", "digest_of", "table_length"]

CHECK = CHUNK
"""Bytes that one checksum covers: the reader fetches whole chunks, so all that arrives can be verified as it is."""

SUM = 8
"""Bytes of a checksum: xxh3-64, big-endian (xxhash's canonical form)."""

DIGEST = 16
"""Bytes of a digest: xxh3-128, big-endian."""

Bytes = bytes | bytearray | memoryview


def digest_of(data: Bytes) -> bytes:
    """The digest of a table, a document or a list."""
    return xxhash.xxh3_128_digest(data)


def check_sums(data: Bytes) -> bytes:
    """The checksums of bytes that begin with a check of a unit and do not reach past that unit's end."""
    view = memoryview(data)
    return b"".join(xxhash.xxh3_64_digest(view[at : at + CHECK]) for at in range(0, len(view), CHECK))


def table_length(data_length: int, unit: int) -> int:
    """Bytes of the table behind `data_length` bytes of a part in units of `unit` bytes."""
    units, rest = divmod(data_length, unit)
    return SUM * (units * -(-unit // CHECK) + -(-rest // CHECK))


class PartTable:
    """The checksums of one part while it is written: `add` its bytes in order, then write `finish()` behind them."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._sums: list[bytes] = []
        self._open = xxhash.xxh3_64()
        self.length = 0
        """Bytes added so far."""

    def add(self, data: Bytes) -> None:
        """Note further bytes; pieces may be cut anywhere."""
        view = memoryview(data)
        while view:
            into = self.length % self._unit
            take = min(len(view), CHECK - into % CHECK, self._unit - into)
            self._open.update(view[:take])
            self.length += take
            view = view[take:]
            if (into + take) % CHECK == 0 or into + take == self._unit:
                self._close()

    def _close(self) -> None:
        self._sums.append(self._open.digest())
        self._open = xxhash.xxh3_64()

    def finish(self) -> bytes:
        """The table. Nothing may be added afterwards; the part's digest is `digest_of` it."""
        into = self.length % self._unit
        if into % CHECK:
            self._close()
        return b"".join(self._sums)
