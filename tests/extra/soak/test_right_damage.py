"""Damage to what stores and caches keep, a small share of the full counts; and the check sees what it is to find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from stripefs.errors import StoreError
from tests.soak.right import Context, Violation, damage


def test_no_damage_gives_wrong_bytes(tmp_path: Path) -> None:
    counters = damage.check(Context(31, 0.04, tmp_path, print))
    assert counters["damages"] == sum(round(share * 0.04) for share in damage.SHARES.values())
    assert counters["right_reads"] > 0


class Naive:
    """A file that nobody checks; `collect` removes it where it looks empty."""

    always_right = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_bytes(b"content")

    def files(self) -> dict[str, Sequence[Path]]:
        return {"file": [self.path]}

    def reads(self) -> Iterator[tuple[str, Callable[[], bytes], bytes]]:
        yield "the file", self.read, b"content"

    def read(self) -> bytes:
        data = self.path.read_bytes()
        if not data:
            raise StoreError("empty")
        return data

    def collect(self) -> None:
        if not self.path.stat().st_size:
            self.path.unlink()

    def close(self) -> None:
        """Nothing stays open."""


class Checked(Naive):
    def read(self) -> bytes:
        data = super().read()
        if data != b"content":
            raise StoreError("damaged")
        return data


@pytest.mark.parametrize(
    ("kind", "told"), [(Naive, "answers wrong bytes"), (Checked, "was removed while it was needed")]
)
def test_a_broken_promise_is_seen(tmp_path: Path, kind: type[Naive], told: str) -> None:
    with pytest.raises(Violation, match=told):
        damage._damage(kind(tmp_path / "file"), Random(1), 100, Counter())
