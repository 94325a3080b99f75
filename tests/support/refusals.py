"""Calls that fail, told by the number of their error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

__all__ = ["errno_of", "refused"]


@contextlib.contextmanager
def refused(number: int) -> Iterator[None]:
    """The block must fail with this error number."""
    with pytest.raises(OSError) as caught:  # noqa: PT011  the number is what is checked
        yield
    assert caught.value.errno == number, caught.value


def errno_of(call: Callable[..., object], *arguments: object) -> int:
    """The number of the error with which a call fails; 0 where it succeeds."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno or -1
    return 0
