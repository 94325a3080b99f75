"""Material of the tests of the tree."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.unit.stripefs.vfs.world import MemoryStore


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Jumps ahead when nothing moved for 250 ms: threads must get their turn, which trio's own clock does not grant."""
    return trio.testing.MockClock(autojump_threshold=0.25)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()
