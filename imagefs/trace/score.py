"""How good a plan was, once it is known what the start touched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from imagefs.format.index import BLOCK

__all__ = ["score"]

Key = TypeVar("Key", bound=Hashable)


def score(
    planned: Mapping[Key, AbstractSet[int]],
    touched: Mapping[Key, AbstractSet[int]],
    size: Callable[[Key, int], int] = lambda _device, _block: BLOCK,
) -> dict[str, Any]:
    """Judge planned against touched blocks, both by device. `size` gives the bytes of a block; those of 0 do not count.

    precision: which share of the planned bytes was touched; recall: which share of the touched bytes was planned; both
    1.0 where there is nothing to share. And blocks and bytes: planned, touched, and both.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("planned_blocks", "touched_blocks", "both_blocks", "planned_bytes", "touched_bytes", "both_bytes"), 0
    )
    for device in planned.keys() | touched.keys():
        ahead, needed = planned.get(device, frozenset()), touched.get(device, frozenset())
        for name, blocks in (("planned", ahead), ("touched", needed), ("both", ahead & needed)):
            sizes = [length for block in blocks if (length := size(device, block))]
            found[f"{name}_blocks"] += len(sizes)
            found[f"{name}_bytes"] += sum(sizes)
    both = found["both_bytes"]
    found["precision"] = round(both / found["planned_bytes"], 4) if found["planned_bytes"] else 1.0
    found["recall"] = round(both / found["touched_bytes"], 4) if found["touched_bytes"] else 1.0
    return found
