"""Layout policy: the layout, the number of parts and their length, from the store's abilities and the memory. Pure.

A part stays in memory until the store has acknowledged all of it, so that it can be written again elsewhere when its
host fails. PARTS_PER_HOST of them make up the memory: one fills, one waits, one flows, one is being closed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Layout", "Shape", "WritePolicy", "best_layout", "concat_shape", "striped_shape"]

MIB = 1 << 20

LONGEST_PART = 64 * MIB
"""More would only hold memory longer: a DataNode takes 0.5 to 1.6 s for it, and opening and closing take 15 ms."""

MEMORY_PER_PART = 8 * MIB
"""Least memory of a part that is written beside others."""

PARTS_PER_HOST = 4

UNPLACED_WIDTH = 4
"""Parts side by side where the store says nothing of its hosts."""


class Layout(enum.Enum):
    CONCAT = "concat"
    STRIPED = "striped"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """Settings of writing. Sizes in bytes, times in seconds.

    layout: the wanted one; a store without the means gets the next best one. unit: bytes that lie together in one part
    of a striped file. memory: for all files of the mount together. small: files below are plain, and stay in memory
    whole. grace: time for which a replaced striped version stays readable. io_timeout: time for which a failing store
    is tried.
    """

    layout: Layout = Layout.CONCAT
    unit: int = 4 * MIB
    memory: int = 512 * MIB
    small: int = 8 * MIB
    grace: float = 600.0
    io_timeout: float = 90.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The next segment: at most `width` parts of `part_length` bytes each, dealt out in units of `unit` (0: one part).

    block_size: of the parts' files, 0 for the store's own.
    """

    width: int
    part_length: int
    unit: int
    block_size: int

    @property
    def length(self) -> int:
        return self.width * self.part_length


def best_layout(wanted: Layout, *, writes: bool, replace: bool, concat: bool, marks: bool) -> tuple[Layout, str]:
    """The layout that a big file gets, and why it is not the one that is wanted ("" where it is)."""
    if wanted is Layout.PLAIN:
        return wanted, ""
    if not (writes and replace):
        return Layout.PLAIN, "the store cannot rename a file over another in one step"
    if wanted is Layout.STRIPED and marks:
        return wanted, ""
    why = "" if wanted is Layout.CONCAT else "the store cannot mark the manifests of striped files"
    if concat:
        return Layout.CONCAT, why
    return Layout.PLAIN, why or "the store cannot join files"


def striped_shape(policy: WritePolicy, hosts: int, share: int, done: int, block: int = 0) -> Shape:
    """Segment number `done` of a file that may use `share` bytes of memory, over `hosts` data hosts (0: unknown).

    The first segments are short, so that the hosts begin at once: parts of 1, 2, 4… units. Each part is one block, also
    where the store's own blocks (`block` bytes, 0: it has none) are shorter: one pipeline that can fail, not several.
    """
    width = max(1, min(hosts or UNPLACED_WIDTH, share // MEMORY_PER_PART))
    units = min(share // (PARTS_PER_HOST * width), LONGEST_PART) // policy.unit
    length = policy.unit * max(1, min(units, 1 << min(done, 30)))
    with_table = -(-length // MIB) * MIB + MIB  # the table has 8 bytes for each MiB, or for each unit if that is less
    return Shape(width, length, policy.unit, with_table if 0 < block < with_table else 0)


def concat_shape(hosts: int, share: int, block: int) -> Shape:
    """One part of a file of whole blocks; `block` is the store's own block size in bytes (0: it has none).

    Blocks shorter than the store's burden its NameNode, and so do parts of less than a block. They are halved only
    down to LONGEST_PART, where the memory would hold too few parts otherwise.
    """
    wanted = min(share // (PARTS_PER_HOST * (hosts or UNPLACED_WIDTH)), LONGEST_PART)
    if not block:
        return Shape(1, max(wanted, MEMORY_PER_PART), 0, 0)
    while block > LONGEST_PART and block % 1024 == 0 and share // block < 2 * (hosts or UNPLACED_WIDTH):
        block //= 2
    return Shape(1, block * max(1, wanted // block), 0, block)
