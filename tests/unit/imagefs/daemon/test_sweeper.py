"""Leftovers of ended uses of images go, if not at once."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon.helpers import Sweeper
from imagefs.settings import DaemonSettings


class Reluctant(Sweeper):
    """A sweeper of what only goes when it was tried a number of times."""

    def __init__(self, tries: int) -> None:
        super().__init__(DaemonSettings())
        self.there = {"first", "alive"}
        self.tried: list[tuple[float, Sequence[str]]] = []
        self._tries = tries

    async def _remove(self, ids: list[str]) -> None:
        self.tried.append((trio.current_time(), ids))
        if len(self.tried) == self._tries:
            self.there -= set(ids)

    async def _remains(self) -> set[str]:
        return set(self.there)


@pytest.mark.parametrize("tries", [1, 2, 9])
async def test_what_cannot_go_yet_is_tried_again(autojump_clock: MockClock, tries: int) -> None:
    sweeper = Reluctant(tries)
    with contextlib.suppress(trio.TooSlowError), trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sweeper.run)
            await sweeper.find({"alive"})
    assert sweeper.there == {"alive"}
    assert [ids for _, ids in sweeper.tried] == [["first"]] * tries
    times = [when for when, _ in sweeper.tried]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert max(pauses, default=0) <= 60


async def test_what_ends_meanwhile_is_not_kept_waiting(autojump_clock: MockClock) -> None:
    sweeper = Reluctant(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sweeper.run)
        await sweeper.find({"alive"})
        await trio.sleep(600)
        sweeper.there.add("second")
        sweeper.over("second")
        before = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert sweeper.tried[-1] == (before, ["first", "second"])
        nursery.cancel_scope.cancel()
