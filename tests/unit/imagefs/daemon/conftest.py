"""A clock that jumps over pauses, and the memory that a supervisor keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from trio.testing import MockClock

from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory
from tests.unit.imagefs.daemon.fake_host import OpenJournal


@pytest.fixture
def clock() -> MockClock:
    """Leaves threads some milliseconds before it jumps."""
    return MockClock(autojump_threshold=0.02)


@pytest.fixture
def open_journal() -> Iterator[OpenJournal]:
    descriptors = make_memory()
    yield lambda: MemoryJournal(CounterPage(descriptors[0]), descriptors[1:])
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def journal(open_journal: OpenJournal) -> MemoryJournal:
    return open_journal()
