"""Refusals of DataNodes that count together, or for one DataNode alone."""

from __future__ import annotations

import pytest

from stripefs.store.hdfs import transfer_hosts
from stripefs.store.hdfs.transfer_hosts import PAUSE, REFUSALS, Refusals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(transfer_hosts.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def refusals(clock: list[float]) -> Refusals:
    return Refusals()


def refuse(refusals: Refusals, *addresses: str, of_connection: bool = True) -> None:
    for address in addresses:
        refusals.refused(address, f"{address} is closed", of_connection=of_connection)


@pytest.mark.parametrize("of_connection", [False, True])
def test_as_long_as_none_has_granted_a_read_all_count_together(refusals: Refusals, of_connection: bool) -> None:
    refuse(refusals, "a", "b", of_connection=of_connection)
    assert not refusals.reason("")
    refuse(refusals, "c", of_connection=of_connection)
    assert refusals.reason("") == refusals.reason("d") == "c is closed"


def test_one_that_granted_ends_the_pause_of_all(refusals: Refusals) -> None:
    refuse(refusals, "a", "b", "c")
    refusals.granted("d")
    assert not refusals.reason("")
    assert not refusals.reason("a")


def test_a_closed_port_says_nothing_of_other_datanodes(refusals: Refusals) -> None:
    refusals.granted("a")
    refuse(refusals, *["b"] * REFUSALS)
    assert refusals.reason("b") == "b is closed"
    assert not refusals.reason("a")
    assert not refusals.reason("")
    assert refusals.paused() == ["b"]


def test_refused_blocks_say_nothing_of_other_blocks_of_the_datanode(refusals: Refusals) -> None:
    refusals.granted("a")
    refuse(refusals, *["a", "b"] * 10, of_connection=False)
    assert not refusals.paused()
    refuse(refusals, *["a"] * REFUSALS)
    assert refusals.reason("a")


def test_refusals_count_in_a_row(refusals: Refusals) -> None:
    for _ in range(5):
        refusals.granted("a")
        refuse(refusals, "a", "a")
    assert refusals.granting("a")
    assert not refusals.reason("a")


def test_pauses_end_and_grow(refusals: Refusals, clock: list[float]) -> None:
    refusals.granted("b")
    refuse(refusals, *["a"] * (REFUSALS + 5))
    clock[0] += PAUSE
    assert not refusals.reason("a")
    assert refusals.paused() == []
    refuse(refusals, "a")
    clock[0] += PAUSE
    assert refusals.reason("a"), "one more refusal was enough, and the second pause is longer"


def test_one_that_was_given_up_has_to_grant_a_read_anew(refusals: Refusals) -> None:
    """Else its silence would count as a host that hangs, which is not asked in another way."""
    refusals.granted("b")
    refusals.granted("a")
    refuse(refusals, *["a"] * REFUSALS)
    assert not refusals.granting("a")
    assert refusals.granting("b")
