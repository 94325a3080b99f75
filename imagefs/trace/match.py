"""A trace of one image applied to another: by content first, else by name.

What a rebuild only moved has the digest it had. What it changed is most likely touched where it was touched before: a
rebuilt layer changes every .pyc (the source's time is in it) and nothing else about how a start goes. So an extent that
is nowhere in the new image stands for the chunk of the new file with the same path that covers the same offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from imagefs.format.trace import Touch
from imagefs.trace.target import Target

__all__ = ["Matched", "match"]


@dataclass(slots=True)
class Matched:
    """Cold places in order of first touch, none twice; and how many touches were found which way, or not."""

    order: list[int] = field(default_factory=list)
    by_digest: int = 0
    by_path: int = 0
    missing: int = 0


def match(touches: Iterable[Touch], target: Target) -> Matched:
    """The extents of `target` that stand for these touches."""
    found = Matched()
    seen: set[int] = set()
    for touch in touches:
        place = _by_content(touch, target)
        if place is not None:
            found.by_digest += 1
        else:
            place = target.at(touch.path, touch.offset)
            if place is None:
                found.missing += 1
                continue
            found.by_path += 1
        if place not in seen:
            seen.add(place)
            found.order.append(place)
    return found


def _by_content(touch: Touch, target: Target) -> int | None:
    """Where the same bytes lie; where they lie several times, at the same path if they do, else the first."""
    places = list(target.find(touch.digest))
    if len(places) <= 1:
        return places[0] if places else None
    named = target.at(touch.path, touch.offset)
    return named if named in places else places[0]
