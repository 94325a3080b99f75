from __future__ import annotations

import pytest

from stripefs.errors import StoreError
from stripefs.store.common import InUse


def test_release_waits_for_the_last_read_whether_it_fails_or_not() -> None:
    released: list[bool] = []
    in_use = InUse("file", lambda: released.append(True))

    def fail() -> None:
        with in_use.reading():
            in_use.close()
            raise ZeroDivisionError

    with in_use.reading():
        with pytest.raises(ZeroDivisionError):
            fail()
        with pytest.raises(StoreError, match="file"), in_use.reading():
            pass
        assert not released
    assert released == [True]
    in_use.close()
    assert released == [True]
