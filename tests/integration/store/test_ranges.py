from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import StoreError
from stripefs.store.base import Kind, Status
from stripefs.store.common import InUse, blocks_by_size


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


@given(size=st.integers(0, 50), length=st.integers(0, 200), offset=st.integers(0, 250), wanted=st.integers(0, 250))
def test_blocks_are_those_that_overlap(size: int, length: int, offset: int, wanted: int) -> None:
    status = Status(b"file", Kind.FILE, length, block_size=size)
    whole = [(at, min(size, length - at)) for at in range(0, length, size)] if size else [(0, length)]
    end = min(length, offset + wanted)
    expected = [(at, share) for at, share in whole if at < end and at + share > offset and offset < end]
    assert [(block.offset, block.length) for block in blocks_by_size(status, offset, wanted)] == expected
