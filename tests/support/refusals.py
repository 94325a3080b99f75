"""Calls that must fail, told by the number of their error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

__all__ = ["refused"]


@contextlib.contextmanager
def refused(number: int) -> Iterator[None]:
    """The block must fail with this error number."""
    with pytest.raises(OSError) as caught:  # noqa: PT011  the number is what is checked
        yield
    assert caught.value.errno == number, caught.value
