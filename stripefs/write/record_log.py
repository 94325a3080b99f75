"""The records of one upload: each fsync writes one that says what is new and continues the one before.

Records that stand form a chain, oldest first. One that says at most as much as what comes behind it is merged with
that, so each says more than twice what the next one does: n fsyncs write O(n log n) bytes, and `stripefs recover` reads
O(log n) documents. A record stands by one rename, and what it was merged of goes only after that. So the newest one and
those that it continues tell all that was durable, wherever a writer dies.

A call that was given up may have its effect later. So a number that was in use once is not used for another record,
but by one that replaces the only record, when the last try was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from stripefs.format.lock_and_record import Record, RecordLink, digest_of
from stripefs.write.effects import Effects
from stripefs.write.names import Names
from stripefs.write.prepared import Prepared

__all__ = ["Durable", "RecordLog"]


@dataclass(frozen=True, slots=True)
class Durable:
    """`count` segments to be recorded. record(start, after) is one of those from `start` on that continues
    `after`. key: equal where the segments that were recorded last are the first of these; None where they never are.
    """

    count: int
    key: Hashable | None
    record: Callable[[int, RecordLink | None], Record]


@dataclass(frozen=True, slots=True)
class _Standing:
    path: bytes
    link: RecordLink
    count: int


@dataclass(frozen=True, slots=True)
class _Next:
    document: bytes
    behind: list[_Standing]
    count: int


class RecordLog:
    """For one task at a time. outdated: paths that are to be removed once a record stands, or the upload has ended."""

    def __init__(self, effects: Effects, names: Names, prepared: Prepared) -> None:
        self.outdated: list[bytes] = []
        self._effects = effects
        self._names = names
        self._prepared = prepared
        self._chain: list[_Standing] = []
        self._key: Hashable | None = None
        self._last = -1  # the highest number that was in use
        self._answered = True

    @property
    def stands(self) -> bool:
        """Tells whether a record stands."""
        return bool(self._chain)

    async def prepare(self, durable: Durable) -> None:
        """Write the next record under another name, as far as it is known now."""
        document = self._next(durable).document
        self.outdated += await self._prepared.drop(but=document)
        self._prepared.begin(document)

    async def write(self, durable: Durable) -> None:
        """A record of all of it stands. Raises StoreError."""
        following = self._next(durable)
        self.outdated += await self._prepared.drop(but=following.document)
        source = await self._prepared.take(following.document)
        number = self._last + 1
        if self._answered and len(self._chain) == 1 and not following.behind:
            number = self._chain[0].link.number
        path = self._names.record(number)
        self._last, self._answered = max(self._last, number), False
        stood = [each.path for each in reversed(self._chain)]
        try:
            await self._effects.rename_over(source, path, len(following.document))
        except BaseException:
            self.outdated += [each for each in (source, path) if each not in stood]
            raise
        self._answered = True
        standing = _Standing(path, RecordLink(number, digest_of(following.document)), following.count)
        self._chain, self._key = [*following.behind, standing], durable.key
        stands = {each.path for each in self._chain}
        self.outdated += [each for each in stood if each not in stands]

    def _next(self, durable: Durable) -> _Next:
        behind = self._chain[:] if durable.key is not None and durable.key == self._key else []
        count = durable.count - sum(each.count for each in behind)
        while behind and behind[-1].count <= count:
            count += behind.pop().count
        record = durable.record(durable.count - count, behind[-1].link if behind else None)
        return _Next(record.to_bytes(), behind, count)

    def forget(self) -> None:
        """The records are of no use any more: newest first, so that what is left of them is a chain."""
        self.outdated += [each.path for each in reversed(self._chain)]
        self._chain, self._key = [], None

    async def unused(self) -> list[bytes]:
        """Paths of what was written ahead and nothing needs. They are forgotten here."""
        return await self._prepared.drop()
