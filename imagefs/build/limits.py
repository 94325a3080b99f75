"""What a layer may ask for at most: honest images stay far below, a bomb does not."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """entries: names in all layers together. layer_bytes: of one layer, unpacked. ratio: unpacked over packed bytes,
    once a layer has unpacked to more than 1 GiB (zeros packed by gzip reach 1000, text 10). path_bytes: of one name
    with its directories, as the kernel has it. header_bytes: of one entry's extended headers."""

    entries: int = 10_000_000
    layer_bytes: int = 1 << 40
    ratio: int = 200
    path_bytes: int = 4096
    header_bytes: int = 1 << 20
