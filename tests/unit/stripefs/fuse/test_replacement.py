"""A worker that leaves for the next waits for files that are being written, for a bounded time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from stripefs.fuse import worker
from stripefs.fuse.worker import DEFERS_FOR, LEAVES_WITHIN, wait_for_writers


@pytest.mark.parametrize(
    ("written_for", "changed_for", "waited", "deferred"),
    [
        (0.0, 0.0, 0.0, False),
        (29.0, 0.0, 30.0, False),
        (0.0, 29.0, 30.0, False),
        (LEAVES_WITHIN - DEFERS_FOR + 9, 0.0, LEAVES_WITHIN - DEFERS_FOR + 10, True),
        (2 * LEAVES_WITHIN, 0.0, LEAVES_WITHIN, True),
    ],
)
async def test_writers_are_waited_for(
    autojump_clock: MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    written_for: float,
    changed_for: float,
    waited: float,
    deferred: bool,
) -> None:
    """In the last minute files that are opened for writing are left to the next worker."""
    monkeypatch.setattr(worker, "_LOOK_EVERY", 5.0)
    backend, operations = SimpleNamespace(open_writes=0), SimpleNamespace(changes=0, defer_writers=False)

    async def hold(target: SimpleNamespace, name: str, seconds: float) -> None:
        setattr(target, name, 1)
        await trio.sleep(seconds)
        setattr(target, name, 0)

    begun = trio.current_time()
    if written_for:
        nursery.start_soon(hold, backend, "open_writes", written_for)
    if changed_for:
        nursery.start_soon(hold, operations, "changes", changed_for)
    await wait_all_tasks_blocked()
    await wait_for_writers(cast(Any, backend), cast(Any, operations))
    assert trio.current_time() - begun == pytest.approx(waited, abs=0.1)
    assert operations.defer_writers == deferred
