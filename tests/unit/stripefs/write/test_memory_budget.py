"""The memory of all files: never more than the limit, nobody waits for ever, those who wait are served in turn."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from stripefs.write import DraftLost
from stripefs.write.memory_budget import MemoryBudget
from tests.support.examples import examples

LIMIT = 100


class Writer:
    """Takes memory, seals what it holds when told to, and gets it back a second later."""

    def __init__(self, budget, nursery):
        self.account = budget.account(self.flush)
        self.nursery = nursery
        self.flushes = 0
        self.done = 0

    def flush(self):
        self.flushes += 1
        self.seal()

    def seal(self):
        size = self.account.open
        if size:
            self.account.seal(size)
            self.nursery.start_soon(self._land, size)

    async def _land(self, size):
        await trio.sleep(1)
        self.account.release(size)

    async def write(self, size):
        await self.account.acquire(size)
        self.done += size
        self.account.acquired()


@examples(40)
@given(
    st.lists(st.lists(st.integers(1, 120), min_size=1, max_size=8), min_size=1, max_size=12),
    st.sets(st.integers(0, 11)),
    st.dictionaries(st.integers(0, 11), st.integers(1, 5)),
)
def test_all_writers_finish_within_the_limit(writers, lazy, patience):
    """Lazy ones never seal by themselves: idle files that hold what others wait for. Those without `patience` are
    cancelled after so many seconds, some of them when their memory was handed out and they have not run yet."""
    budget = MemoryBudget(LIMIT)

    async def main():
        async with trio.open_nursery() as nursery:
            for number, sizes in enumerate(writers):
                nursery.start_soon(one, Writer(budget, nursery), sizes, number in lazy, patience.get(number, 10_000))

    async def one(writer, sizes, lazy, patience):
        with trio.move_on_after(patience) as waiting:
            for size in sizes:
                await writer.write(size)
                assert budget.used <= max(LIMIT, size)
                if not lazy and writer.account.open > 30:
                    writer.seal()
        assert budget.used == sum(account.held for account in budget._accounts)
        assert waiting.cancelled_caught or writer.done == sum(sizes)
        if not lazy:
            writer.seal()
            writer.account.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not budget._queue


async def test_nothing_is_cut_while_enough_is_on_its_way(autojump_clock):
    budget = MemoryBudget(LIMIT)
    async with trio.open_nursery() as nursery:
        busy, idle = Writer(budget, nursery), Writer(budget, nursery)
        await idle.write(20)
        await busy.write(80)
        busy.seal()
        await busy.write(80)
        assert (busy.flushes, idle.flushes) == (0, 0)
        await busy.write(100)  # now the idle one's memory is needed too, after the fuller one's
        assert (busy.flushes, idle.flushes) == (1, 1)


async def test_in_turn(autojump_clock):
    budget = MemoryBudget(LIMIT)
    order = []
    async with trio.open_nursery() as nursery:
        first = Writer(budget, nursery)
        await first.write(100)

        async def late(name, size):
            writer = Writer(budget, nursery)
            await writer.write(size)
            order.append(name)
            writer.seal()

        for name, size in (("a", 60), ("b", 60), ("c", 1), ("d", 40)):
            nursery.start_soon(late, name, size)
            await trio.testing.wait_all_tasks_blocked()
    assert (order[0], set(order[1:3]), order[3]) == ("a", {"b", "c"}, "d")  # b and c run in the same moment
    assert budget.waits == 4
    assert budget.waited > 0


async def test_closing_ends_the_wait():
    budget = MemoryBudget(LIMIT)
    holder, waiting, other = (budget.account(lambda: None) for _ in range(3))
    await holder.acquire(100)
    holder.seal(100)
    taken = []

    async def wait(account):
        with pytest.raises(DraftLost) if account is waiting else trio.CancelScope():
            await account.acquire(50)
            taken.append(account)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, waiting)
        nursery.start_soon(wait, other)
        await trio.testing.wait_all_tasks_blocked()
        waiting.close()
        await trio.testing.wait_all_tasks_blocked()
        holder.release(100)
    assert taken == [other]
    with pytest.raises(DraftLost):
        await waiting.acquire(1)
