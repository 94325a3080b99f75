"""The order of long listings, which is made in parts."""

from __future__ import annotations

import builtins
import random
from typing import Any

import pytest

from stripefs.store import common
from stripefs.store.common import in_order


@pytest.mark.parametrize("count", [0, 1, common._SORTED, common._SORTED + 1, 5 * common._SORTED + 7])
def test_names_come_in_byte_order_and_no_call_sorts_all(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(count)
    names = [chance.randbytes(1 + chance.randrange(3)) for _ in range(count)]
    sizes: list[int] = []

    def note(part: list[bytes]) -> Any:
        sizes.append(len(part))
        return builtins.sorted(part)

    monkeypatch.setattr(common, "sorted", note, raising=False)
    assert in_order(names) == builtins.sorted(names)
    assert max(sizes, default=0) <= common._SORTED
    assert sum(sizes) == count
