"""Makes what is here of one version another's, without reading it: segments are described anew and renamed.

A check value is of a version, but what it is made of is of the bytes and their place alone; so it can be made anew of
what stands. Only where both versions have some of a segment are blocks copied, each checked on the way.
"""

from __future__ import annotations

import contextlib
import os

from stripefs.cache.filling import Filling
from stripefs.cache.grid import BLOCK, PER_SEGMENT, length_of
from stripefs.cache.segment import Damaged, Segment
from stripefs.cache.table import EMPTY, SLOT, digest_in
from stripefs.store.allocator import PAGE, aligned

__all__ = ["adopt"]


def adopt(old: bytes, length: int, new: Filling, stop: int) -> None:
    """What is here of the version `old`, of `length` bytes, up to block `stop` becomes that of `new`.

    Its bytes must be those that `new` has there. What others are filling just now stays as it is, and so does what is
    pinned. Blocking; raises OSError.
    """
    cache = new.cache
    if cache.place.pinned(old):
        return
    for piece in list(cache.place.pieces([old])):
        if piece.number * PER_SEGMENT >= stop:
            continue
        cache.segments.forget(old, piece.number)
        source, target = cache.place.segment(old, piece.number), cache.place.segment(new.key, piece.number)
        with contextlib.suppress(FileNotFoundError, Damaged):  # evicted since, or no use
            segment = Segment(source, old, piece.number, length)
            with contextlib.closing(segment):
                if os.path.lexists(target):
                    _copy(segment, old, piece.number, new, stop)
                    continue
                new.describe()
                if segment.become(new.key, new.length, stop):
                    os.rename(source, target)
    cache.place.tidy(old)


def _copy(segment: Segment, old: bytes, number: int, new: Filling, stop: int) -> None:
    every = range(number * PER_SEGMENT, min((number + 1) * PER_SEGMENT, stop))
    slots = segment.slots(every)
    buffer = aligned(BLOCK)
    for index, block in enumerate(every):
        slot = slots[index * SLOT :][:SLOT]
        if slot != EMPTY:
            one = range(block, block + 1)
            size = length_of(one, new.length)
            segment.read(one, buffer[: -(-size // PAGE) * PAGE])
            if segment.fits(block, slot, buffer[:size]):
                new.fill(one, buffer[:size], [digest_in(old, slot)])
