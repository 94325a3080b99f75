"""What a layer may ask for at most: honest images stay far below, a bomb does not."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Limits"]


class Limits(NamedTuple):
    """layers: of one image. entries: names in all layers together, each of which takes about 1.5 KB of memory.
    attribute_bytes: of attributes, links' targets and maps of holes in all layers together. tree_bytes: of the files in
    all layers together, holes among them. layer_bytes: of one layer, unpacked. ratio: unpacked over packed bytes of all
    layers so far, once they have unpacked to more than 1 GiB (zeros packed by gzip reach 1000, text 10). path_bytes: of
    one name with its directories, as the kernel has it. header_bytes: of one entry's extended headers."""

    layers: int = 1000
    entries: int = 2_000_000
    attribute_bytes: int = 256 << 20
    tree_bytes: int = 1 << 40
    layer_bytes: int = 1 << 40
    ratio: int = 200
    path_bytes: int = 4096
    header_bytes: int = 1 << 20
