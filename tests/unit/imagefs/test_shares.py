"""Which snapshots a host does not mount for a while, because a block of them could not be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon.shares import Shares
from imagefs.daemon.state import Attachment
from imagefs.errors import BlockUnavailable, DamagedObject
from stripefs.errors import NotFound, ServiceDown, StripefsError


class Host:
    """One without attachments."""

    def attachments(self) -> Mapping[str, Attachment]:
        return {}

    def change(self, attachment: Attachment, **values: Any) -> None:
        raise AssertionError("nothing is attached")

    def let_go(self, attachment: Attachment) -> None:
        raise AssertionError("nothing is attached")

    async def note_use(self, request: Mapping[str, Any]) -> None:
        raise AssertionError("nothing is used")


@pytest.mark.parametrize("cause", [DamagedObject("other bytes"), NotFound("no such pack")])
async def test_a_device_whose_block_is_damaged_or_gone(cause: StripefsError, mock_clock: MockClock) -> None:
    shares, error = Shares(Host()), BlockUnavailable("block 1")
    error.__cause__ = cause
    shares.failed("b" * 64, error)
    with pytest.raises(DamagedObject, match="was damaged or gone"):
        shares.check_undamaged("c" * 64, ["a" * 64, "b" * 64])
    shares.check_undamaged("c" * 64, ["a" * 64])
    mock_clock.jump(599)
    with pytest.raises(DamagedObject):
        shares.check_undamaged("c" * 64, ["b" * 64])
    mock_clock.jump(2)
    shares.check_undamaged("c" * 64, ["b" * 64])


async def test_a_store_that_is_away_says_nothing_of_its_blocks(mock_clock: MockClock) -> None:
    shares, error = Shares(Host()), BlockUnavailable("block 1")
    error.__cause__ = ServiceDown("away")
    shares.failed("b" * 64, error)
    shares.check_undamaged("c" * 64, ["b" * 64])
    await trio.lowlevel.checkpoint()
