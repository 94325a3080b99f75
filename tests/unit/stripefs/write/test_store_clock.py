"""The store's clock, whatever the clock of this host says."""

from __future__ import annotations

from pathlib import Path

import pytest

from stripefs.errors import PermissionDenied, StoreError
from stripefs.store.local import LocalStore
from stripefs.write.store_ops import StoreClock
from tests.support.shifted_store import Shifted


@pytest.mark.parametrize("seconds", [0, 86400 * 400, -86400 * 400])
def test_it_is_the_time_of_a_fresh_file_and_never_ahead(tmp_path: Path, seconds: int) -> None:
    store = Shifted(LocalStore(bytes(tmp_path)), seconds)
    clock = StoreClock(store)
    first, second = clock.now_ns(), clock.now_ns()
    store.put(b"/later", [b""])
    assert first <= second
    later = store.stat(b"/later").mtime_ns
    # A file system may give times of its last tick, 10 ms at most.
    assert second - 10**7 <= later < second + 60 * 10**9
    assert [entry.name for entry in tmp_path.iterdir()] == ["later"]


def test_a_store_that_knows_no_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no times"):
        StoreClock(Shifted(LocalStore(bytes(tmp_path)), None))
    assert not list(tmp_path.iterdir())


def test_a_store_that_may_not_be_written_to(tmp_path: Path) -> None:
    class Sealed(LocalStore):
        def put(self, *args: object, **more: object) -> None:
            raise PermissionDenied("sealed")

    with pytest.raises(PermissionDenied):
        StoreClock(Sealed(bytes(tmp_path)))
