"""Memory that two processes share, as a state machine: buffers do not overlap, and keep their bytes."""

from __future__ import annotations

import mmap
from contextlib import closing

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from stripefs.store.allocator import SharedBuffers

UNIT = 1 << 20
CAPACITY = 12


class Buffers(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.buffers = SharedBuffers(CAPACITY * UNIT)
        self.other = mmap.mmap(self.buffers.descriptor, CAPACITY * UNIT)  # as the other process has it
        self.bytes: dict[int, tuple[memoryview, bytes]] = {}
        self.next = 0

    def units(self) -> dict[int, int]:
        """The buffer in each unit that is in use."""
        return {at // UNIT + unit: at for at, (view, _) in self.bytes.items() for unit in range(-(-len(view) // UNIT))}

    @rule(target=held, size=st.integers(16, 5 * UNIT))
    def take(self, size: int) -> int:
        taken = self.buffers.take(size)
        units, used = -(-size // UNIT), self.units()
        gaps = [at for at in range(CAPACITY - units + 1) if not any(at + one in used for one in range(units))]
        if taken is None:
            assert not gaps
            return -1
        offset, view = taken
        assert len(view) == size
        assert offset // UNIT == gaps[0]
        self.next += 1
        mark = self.next.to_bytes(8, "little")
        self.other[offset : offset + len(mark)] = mark
        self.other[offset + size - len(mark) : offset + size] = mark
        self.bytes[offset] = view, mark
        return offset

    @rule(offset=consumes(held), part=st.booleans())
    def release(self, offset: int, part: bool) -> None:
        if offset >= 0:
            view, mark = self.bytes[offset]
            rest = view[len(view) - len(mark) :] if part else None
            del view
            view_, _ = self.bytes.pop(offset)
            del view_
            if rest is not None:  # a part of a buffer keeps all of it
                assert self.buffers.used >= len(rest)
                taken = self.buffers.take(CAPACITY * UNIT)
                assert taken is None
                assert rest == mark

    @rule()
    def trim(self) -> None:
        self.buffers.trim()

    @invariant()
    def holds(self) -> None:
        assert self.buffers.used == UNIT * len(self.units())
        for view, mark in self.bytes.values():
            assert view[: len(mark)] == mark
            assert view[len(view) - len(mark) :] == mark

    def teardown(self) -> None:
        self.bytes.clear()
        assert self.buffers.used == 0
        self.buffers.trim()
        assert self.buffers.resident == 0
        self.buffers.close()


TestBuffers = Buffers.TestCase
TestBuffers.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_what_is_free_goes_beyond_what_is_kept() -> None:
    with closing(SharedBuffers(400 * UNIT)) as buffers:
        first = buffers.take(10 * UNIT)
        second = buffers.take(300 * UNIT)
        assert first is not None
        assert second is not None
        second[1][:] = bytes(300 * UNIT)
        del second
        buffers.trim()
        assert buffers.resident == 64 * UNIT  # the least that stays while there is a buffer
        del first
        buffers.trim()
        assert not buffers.resident
