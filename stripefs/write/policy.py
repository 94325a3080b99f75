"""Which layout, how many parts, how long each: pure arithmetic over what the store can do and the memory at hand."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Layout", "WritePolicy"]

MIB = 1 << 20


class Layout(enum.Enum):
    CONCAT = "concat"
    STRIPED = "striped"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """How files are written. Sizes in bytes, times in seconds.

    layout: what is wanted; a store without the means gets the next best one (`layout_for`). unit: bytes that lie
    together in one part of a striped file. memory: for all files of the mount together. small: files below are plain.
    grace: how long a replaced striped version stays readable. io_timeout: how long a failing store is tried again.
    """

    layout: Layout = Layout.CONCAT
    unit: int = 4 * MIB
    memory: int = 256 * MIB
    small: int = 8 * MIB
    grace: float = 600.0
    io_timeout: float = 90.0
