"""A clock that jumps over pauses, and the memory that a supervisor keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from trio.testing import MockClock

from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory


@pytest.fixture
def clock() -> MockClock:
    """Leaves threads some milliseconds before it jumps."""
    return MockClock(autojump_threshold=0.02)


@pytest.fixture
def journal() -> Iterator[MemoryJournal]:
    counters, *slots = memory = make_memory()
    yield MemoryJournal(CounterPage(counters), (slots[0], slots[1]))
    for descriptor in memory:
        os.close(descriptor)
