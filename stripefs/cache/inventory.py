"""What is in a cache folder, for people: listing it, checking it, taking versions out. Blocking.

Others may use the folder meanwhile. What vanishes is left out; a folder that cannot be read raises OSError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stripefs.cache.grid import BLOCK, PER_SEGMENT, length_of
from stripefs.cache.place import Place
from stripefs.cache.segment import Damaged, Segment
from stripefs.cache.table import SLOT, TABLE, described, here
from stripefs.store.allocator import PAGE, aligned

__all__ = ["Checked", "Held", "check", "held"]


@dataclass(frozen=True, slots=True)
class Held:
    """A version of which something is here. about: as in `Place.about`. size: bytes on disk; used: seconds since 1970.

    numbers: its segments. writing: it is being written, and is no version of a file yet.
    """

    key: bytes
    about: dict[str, Any]
    pinned: bool
    writing: bool
    size: int
    used: float
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        """Where the file was when it was last seen, "" where that is not known."""
        path = self.about.get("path")
        return path if isinstance(path, str) else ""

    @property
    def length(self) -> int:
        """Of the file in bytes, 0 where that is not known."""
        length = self.about.get("length")
        return length if isinstance(length, int) else 0


@dataclass(slots=True)
class Checked:
    """blocks and size: what was read, in bytes. damaged: blocks that were not what was written, and are here no more.

    unreadable: segments that the disk did not give, or that are none, with the reason.
    """

    blocks: int = 0
    size: int = 0
    damaged: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)


def held(place: Place) -> Iterator[Held]:
    """All versions of which there is a folder, in the order of their keys."""
    for key in place.versions():
        pieces = sorted(place.pieces([key]), key=lambda piece: piece.number)
        yield Held(
            key,
            place.about(key),
            place.pinned(key),
            place.is_written(key),
            sum(piece.size for piece in pieces),
            max((piece.used for piece in pieces), default=0.0),
            tuple(piece.number for piece in pieces),
        )


def check(place: Place, version: Held) -> Checked:
    """Read all that is here of a version and compare it."""
    found = Checked()
    for number in version.numbers:
        path = place.segment(version.key, number)
        try:
            _check(path, version.key, number, found)
        except FileNotFoundError:
            continue  # evicted since
        except (OSError, Damaged) as error:
            found.unreadable.append((path, getattr(error, "strerror", None) or str(error)))
    return found


def _check(path: str, key: bytes, number: int, found: Checked) -> None:
    with open(path, "rb") as file:
        told = described(file.read(TABLE))
    if told is None:
        raise Damaged("it has no header")
    length = told[2]
    segment = Segment(path, key, number, length)
    with contextlib.closing(segment):
        blocks = range(number * PER_SEGMENT, (number + 1) * PER_SEGMENT)
        slots = segment.slots(blocks)
        buffer = aligned(BLOCK)
        for place, block in enumerate(blocks):
            slot = slots[place * SLOT : (place + 1) * SLOT]
            if not any(here(slot)):
                continue
            one = range(block, block + 1)
            size = length_of(one, length)
            data = buffer[: -(-size // PAGE) * PAGE]
            segment.read(one, data)
            found.blocks += 1
            found.size += size
            found.damaged += not segment.fits(block, slot, data[:size]) and segment.clear(block, slot)
