"""The plan of `bench fleet`: fleets that are played and simulated, its ratios, the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.fleet.model import DATANODES, MIRROR, STORE, Stage, World
from bench.harness.report import Facts, Lines, Report, machine
from bench.harness.results import Document, Key, Metric, RatioPlan

__all__ = ["CHECKED", "COUNTS", "FLEETS", "REPORT", "Scenario", "checked", "fleet", "ratios", "ways"]

COUNTS = (1, 2, 4, 8)
"""Nodes of the fleets that are played on this machine."""

FLEETS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000)

CHECKED = ("today", "ours")
_SYSTEMS = {
    "today": "today: pull, pip, one stream",
    "lazy": "recorded image and snapshot, no mirror",
    "ours": "all together",
    "ours:mirrors": "all together, a mirror for each 100 nodes",
}
"""With words for people."""

_CORES = 8
_PER_MIRROR = 100


@dataclass(frozen=True, slots=True)
class Scenario:
    """A data centre. Rates in bytes a second; a DataNode for each `nodes_per_datanode` nodes, but `datanodes` at least.

    failures: the probability that a MiB does not come and is asked for again. slow: the share of DataNodes that are
    four times slower.
    """

    store: float = 2.5e9
    node: float = 2.5e9
    mirror: float = 2.5e9
    datanode: float = 200e6
    datanodes: int = 20
    nodes_per_datanode: int = 4
    replication: int = 3
    latency: float = 0.002
    failures: float = 1e-4
    slow: float = 0.01

    def world(self, nodes: int, *, mirrors: bool) -> World:
        return World(
            store=self.store,
            node=self.node,
            mirrors=max(nodes // _PER_MIRROR, 1) if mirrors else 0,
            mirror=self.mirror,
            datanodes=max(self.datanodes, nodes // self.nodes_per_datanode),
            datanode=self.datanode,
            replication=self.replication,
            latency=self.latency,
            cores=_CORES,
            failures=self.failures,
            slow_datanodes=self.slow,
        )


def ways(measured: Mapping[str, Any]) -> dict[str, list[Stage]]:
    """The stages of each of `_SYSTEMS`, from what one node of `bench startup` moved and computed.

    measured: by system ("today", "all") and stage ("image", "dependencies", "checkpoint"): {"bytes", "fixed"}, the
    latter in seconds. Raises ValueError where something is missing.
    """
    try:
        today, ours = ([_stage(measured[system], name) for name in _NAMES] for system in ("today", "all"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the document has no figures of {error} for the model: measure `startup` anew") from error
    image, packages, checkpoint = today
    sequence = [
        replace(image, streams=_LAYERS_AT_ONCE, request=image.size / _LAYERS_AT_ONCE),
        replace(packages, after=("image",)),
        replace(checkpoint, source=DATANODES, common=False, chosen=False, request=_BLOCK, after=("dependencies",)),
    ]
    image, packages, checkpoint = ours
    together = [
        replace(image, streams=_FETCHES),
        replace(packages, streams=_FETCHES),
        replace(checkpoint, source=DATANODES, common=False, streams=_RANGES, request=_BLOCK),
    ]
    mirrored = [replace(stage, source=MIRROR if stage.source == STORE else stage.source) for stage in together]
    return {
        "today": sequence,
        "lazy": [*together[:2], replace(sequence[2], after=("image", "dependencies"))],
        "ours": together,
        "ours:mirrors": mirrored,
    }


_NAMES = ("image", "dependencies", "checkpoint")
_LAYERS_AT_ONCE = 3  # as containerd has it
_FETCHES = 8  # as imagefs has it: `DaemonSettings.fetches`
_RANGES = 32
_BLOCK = 8 << 20


def _stage(stages: Mapping[str, Mapping[str, float]], name: str) -> Stage:
    return Stage(name, stages[name]["bytes"], fixed=stages[name]["fixed"])


def checked(count: int) -> str:
    """The case of a fleet that is played."""
    return f"played_{count}"


def fleet(count: int) -> str:
    """The case of a fleet that is simulated."""
    return f"fleet_{count}"


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    made = [
        RatioPlan(f"model_error_{way}_{count}", Key(checked(count), way, "error"), None, 0.15)
        for way in CHECKED
        for count in COUNTS
    ]
    made += [
        RatioPlan(f"slowest_of_{count}_vs_today", Key(fleet(count), "ours:mirrors", "time"), _today(count))
        for count in FLEETS
    ]
    return made


def _today(count: int) -> Key:
    return Key(fleet(count), "today", "time")


def _head(facts: Facts) -> str:
    scenario = ", ".join(f"{name} {value:g}" for name, value in facts["scenario"].items())
    fed = f"fed by {facts['fed_by']}" if facts["fed_by"] else "not fed, so no large fleets"
    return f"the model is {fed}; data centre: {scenario}; {facts['rounds']} rounds. {machine(facts, 'simpy')}"


def _chart(document: Document) -> Lines:
    return Lines(
        {
            words: [(count, row.median) for count in FLEETS if (row := document.row(fleet(count), system, "time"))]
            for system, words in _SYSTEMS.items()
        },
        none="there are no simulated fleets to draw: give --from",
        title="A job's start on a growing fleet, by the model",
        across="nodes",
        upwards="seconds until the slowest node has all it needs",
    )


REPORT = Report(
    ratios=ratios(),
    columns=("time", "median_time", "predicted", "cpu"),
    metrics={"time": Metric("s", "s, slowest node", 2)},
    cases=[*map(checked, COUNTS), *map(fleet, FLEETS)],
    systems=[*CHECKED, *_SYSTEMS],
    head=_head,
    chart=_chart,
)
