"""Traces and plans in a store: found again, bounded in number, and never believed when they are damaged."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import zstandard

from imagefs.errors import DamagedObject, FormatError
from imagefs.format.trace import Plan, PlanRun, Touch, Trace
from imagefs.repository.images import Images
from imagefs.repository.store import open_repository
from imagefs.repository.traces import OTHERS, Traces, load_plan, local_traces, other_plans
from stripefs.errors import NotFound, PermissionDenied
from stripefs.settings import StoreSettings
from tests.tools.web_server import WebServer

BASE, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def traces(images: Images) -> Traces:
    return Traces(images.repository)


def made(started: float, *, base: str = BASE) -> Trace:
    return Trace(base, "default", "n", started, 1.0, "ready", True, "", [Touch(0, b"a", 0, 10, bytes(16))])


def test_traces_are_found_again_the_oldest_first(traces: Traces, tmp_path: Path) -> None:
    names = [traces.put(made(started)) for started in (5.0, 1700000000.5, 3.25)]
    assert names[1].startswith("001700000000500-")
    assert traces.load(BASE, "default", names[0]) == made(5.0)
    assert [one.started for one in traces.newest(BASE, "default", 2)] == [5.0, 1700000000.5]
    traces.put(made(1.0, base=OTHER))
    assert sorted(traces.bases()) == [BASE, OTHER]
    traces.put_plan(Plan(BASE, "default", 1, []))
    for folder in (f"traces/{BASE}", f"traces/{BASE}/default", f"plans/{BASE}"):
        (tmp_path / "store" / folder / ".default.2582005966aa.tmp").touch()  # it is being written
    assert (traces.workloads(BASE), len(traces.names(BASE, "default"))) == (["default"], 3)
    assert traces.plans() == [(BASE, "default")]


def test_where_there_is_nothing_nothing_is_found(traces: Traces) -> None:
    assert traces.bases() == traces.workloads(BASE) == traces.names(BASE, "default") == []
    assert traces.plans() == []
    assert traces.plan(BASE, "default") is None
    for call in (traces.load, traces.remove):
        with pytest.raises(NotFound):
            call(BASE, "default", "0" * 15 + "-" + "0" * 16)
        with pytest.raises(NotFound):
            call(BASE, "default", "../../up")
    with pytest.raises(NotFound):
        traces.names("../up", "default")
    with pytest.raises(FormatError):
        traces.names(BASE, "..")


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-5],
        lambda packed: b"",
        lambda packed: b"garbage",
        lambda packed: zstandard.compress(b"{}"),
        lambda packed: packed[:20] + bytes([packed[20] ^ 1]) + packed[21:],
        lambda packed: zstandard.compress(made(2.0).to_json()),
    ],
)
def test_a_damaged_trace_is_left_out(
    traces: Traces, tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    whole, broken = traces.put(made(1.0)), traces.put(made(7.0))
    path = tmp_path / f"store/traces/{BASE}/default/{broken}"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DamagedObject):
        traces.load(BASE, "default", broken)
    with caplog.at_level(logging.WARNING):
        assert traces.newest(BASE, "default") == [traces.load(BASE, "default", whole)]
    assert "a trace is left out" in caplog.text


def test_a_trace_in_the_wrong_place_is_left_out(traces: Traces, tmp_path: Path) -> None:
    name = traces.put(made(1.0))
    folder = tmp_path / f"store/traces/{OTHER}/default"
    folder.mkdir(parents=True)
    os.link(tmp_path / f"store/traces/{BASE}/default/{name}", folder / name)
    with pytest.raises(FormatError, match="another image"):
        traces.load(OTHER, "default", name)
    assert traces.newest(OTHER, "default") == []


def test_a_bomb_is_not_unpacked(traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = traces.put(made(1.0))
    path = tmp_path / f"store/traces/{BASE}/default/{name}"
    path.write_bytes(zstandard.compress(bytes(10 << 20)))
    monkeypatch.setattr("imagefs.repository.traces.SIZE_LIMIT", 1 << 20)
    with pytest.raises(DamagedObject):
        traces.load(BASE, "default", name)
    path.write_bytes(bytes(2 << 20))
    with pytest.raises(DamagedObject, match="2097152 bytes"):
        traces.load(BASE, "default", name)


def test_plans_are_replaced_and_found(traces: Traces, images: Images, tmp_path: Path) -> None:
    traces.put_plan(Plan(BASE, "train", 1, [PlanRun(1, 0, 3)]))
    traces.put_plan(Plan(BASE, "train", 2, [PlanRun(1, 0, 4)]))
    here = tmp_path / "here"
    assert load_plan(images, BASE, "train", here) == Plan(BASE, "train", 2, [PlanRun(1, 0, 4)])
    with local_traces(here) as local:
        local.put_plan(Plan(BASE, "train", 1, [PlanRun(1, 9, 1)]))
        assert load_plan(images, BASE, "train", here) == Plan(BASE, "train", 2, [PlanRun(1, 0, 4)])
        local.put_plan(Plan(BASE, "train", 3, [PlanRun(1, 9, 1)]))
    assert load_plan(images, BASE, "train", here) == Plan(BASE, "train", 3, [PlanRun(1, 9, 1)])


def test_a_plan_that_is_damaged_or_not_to_be_had_gives_way_to_the_other(
    traces: Traces, images: Images, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(BASE, "train", 1, [PlanRun(1, 0, 3)])
    traces.put_plan(plan)
    with local_traces(tmp_path / "here") as local:
        local.put_plan(plan)
    (tmp_path / f"store/plans/{BASE}/train").write_bytes(b"{}")
    assert load_plan(images, BASE, "train", tmp_path / "here") == plan
    with pytest.raises(FormatError):
        load_plan(images, BASE, "train")
    (tmp_path / f"here/plans/{BASE}/train").write_bytes(Plan(OTHER, "train", 1, []).to_json())
    with pytest.raises(FormatError):
        load_plan(images, BASE, "train", tmp_path / "here")
    traces.put_plan(plan)
    assert load_plan(images, BASE, "train", tmp_path / "here") == plan
    with local_traces(tmp_path / "here") as local:
        local.put_plan(plan)
    monkeypatch.setattr(images.repository, "read", Mock(side_effect=PermissionDenied("no")))
    assert load_plan(images, BASE, "train", tmp_path / "here") == plan
    with pytest.raises(PermissionDenied):
        load_plan(images, BASE, "train")


# -- plans of other workloads ------------------------------------------------------------------------------------------


def planned(workload: str, traces: int, *, base: str = BASE) -> Plan:
    return Plan(base, workload, traces, [PlanRun(1, traces, 4)])


def test_plans_of_other_workloads_those_that_most_starts_taught_first(traces: Traces, tmp_path: Path) -> None:
    images, folder = Images(traces.repository), tmp_path / "kept"
    assert other_plans(images, BASE, "train", folder) == []
    for plan in (planned("train", 9), planned("serve", 1), planned("default", 2), planned("eval", 5, base=OTHER)):
        traces.put_plan(plan)
    assert other_plans(images, BASE, "train", folder) == [planned("default", 2), planned("serve", 1)]
    with local_traces(folder) as local:
        for plan in (planned("serve", 3), planned("default", 1), planned("here", 1), planned("train", 7)):
            local.put_plan(plan)
    assert other_plans(images, BASE, "train", folder) == [
        planned("serve", 3),
        planned("default", 2),
        planned("here", 1),
    ]


def test_of_many_workloads_few_are_asked_for_the_default_one_among_them(traces: Traces, tmp_path: Path) -> None:
    for number in range(3 * OTHERS):
        traces.put_plan(planned(f"a{number:02}", 1))
    traces.put_plan(planned("default", 1))
    images, folder = Images(traces.repository), tmp_path / "kept"
    found = [plan.workload for plan in other_plans(images, BASE, "train", folder)]
    assert (len(found), "default" in found) == (OTHERS, True)
    with local_traces(folder) as local:
        for number in range(2 * OTHERS):
            local.put_plan(planned(f"b{number:02}", 2 + number))
    taught = [plan.traces for plan in other_plans(images, BASE, "train", folder)]
    assert taught == [2 * OTHERS + 1 - number for number in range(OTHERS)]  # of this host all are looked at


def test_a_plan_of_another_workload_that_is_damaged_is_left_out(traces: Traces, tmp_path: Path) -> None:
    for workload in ("default", "serve"):
        traces.put_plan(planned(workload, 1))
    (tmp_path / "store/plans" / BASE / "serve").write_bytes(b"{}")
    assert other_plans(Images(traces.repository), BASE, "train", tmp_path / "kept") == [planned("default", 1)]


def test_a_store_that_does_not_list_is_asked_for_the_default_workload(traces: Traces, tmp_path: Path) -> None:
    for workload in ("default", "serve"):
        traces.put_plan(planned(workload, 1))
    with WebServer(tmp_path / "store") as server:
        images = Images(open_repository(StoreSettings(url=server.url)))
        assert other_plans(images, BASE, "train", tmp_path / "kept") == [planned("default", 1)]
        assert other_plans(images, BASE, "default", tmp_path / "kept") == []
        images.repository.close()
