"""A clock that jumps over pauses."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """Leaves threads some milliseconds before it jumps."""
    return MockClock(autojump_threshold=0.02)
