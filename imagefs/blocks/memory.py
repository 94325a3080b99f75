"""Blocks that are held in memory, by their digests: those on their way to the disk, and of those that it did not take
the latest used.

What is on its way to the disk is *held* and stays; the rest makes room for it, and for `in_flight`, the bytes that are
being fetched, so that all together stay within `limit`.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Memory"]


class Memory:
    """`limit` in bytes. It is exceeded by what is held and in flight alone, which others bound."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.held = 0
        self.in_flight = 0
        self._free: OrderedDict[bytes, bytes] = OrderedDict()
        self._held: dict[bytes, tuple[bytes, int]] = {}

    def get(self, digest: bytes) -> bytes | None:
        data = self._free.get(digest)
        if data is not None:
            self._free.move_to_end(digest)
            return data
        held = self._held.get(digest)
        return held[0] if held else None

    def add(self, digest: bytes, data: bytes) -> None:
        if digest not in self._free and digest not in self._held:
            self._free[digest] = data
            self.used += len(data)
            self._make_room()

    def hold(self, digest: bytes, data: bytes) -> None:
        """Keep it until as many calls of `release` followed."""
        if (found := self._held.get(digest)) is not None:
            self._held[digest] = found[0], found[1] + 1
            return
        if self._free.pop(digest, None) is None:
            self.used += len(data)
        self._held[digest] = data, 1
        self.held += len(data)
        self._make_room()

    def release(self, digest: bytes, *, kept: bool = False) -> None:
        """kept: it is on disk now, and so in the kernel's memory, where it does not take ours as well."""
        data, count = self._held.pop(digest)
        if count > 1:
            self._held[digest] = data, count - 1
            return
        self.held -= len(data)
        if kept:
            self.used -= len(data)
        else:
            self._free[digest] = data
            self._make_room()

    def fly(self, size: int) -> None:
        """`size` more bytes are in flight; fewer, when it is negative."""
        self.in_flight += size
        self._make_room()

    def clear(self) -> None:
        """Give up everything that is not held."""
        self.used -= sum(map(len, self._free.values()))
        self._free.clear()

    def _make_room(self) -> None:
        while self._free and self.used + self.in_flight > self.limit:
            _, data = self._free.popitem(last=False)
            self.used -= len(data)
