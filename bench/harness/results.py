"""Samples of a benchmark, and the rows, ratios and JSON document that are drawn from them.

A sample belongs to a case, a system, a metric and a round. Ratios are made round by round, because what disturbs a
round disturbs both of its sides, and then summed up: the median of the quotients, with the lowest and the highest.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "UNITS",
    "Document",
    "Draw",
    "Key",
    "Ratio",
    "RatioPlan",
    "Row",
    "Samples",
    "draw",
    "load",
    "needed",
    "quotients",
    "spread",
    "sum_up",
]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one series of samples."""

    case: str
    system: str
    metric: str = "throughput"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the full table: `n` samples of a series in `unit`."""

    case: str
    system: str
    metric: str
    unit: str
    median: float
    min: float
    max: float
    n: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """`value` is the median of the quotients of single rounds, `low` and `high` their extremes."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RatioPlan:
    """`upper / lower`, or without a `lower` the figure itself. `bound` 0 means that it is only reported."""

    name: str
    upper: Key
    lower: Key | None
    bound: float = 0.0
    at_least: bool = False


UNITS = {
    "throughput": "MB/s",  # 10^6 bytes, as disks and links count
    "time": "s",
    "cpu_per_gb": "s/GB",  # user and system time of all processes of the system, reader included
    "datanode_cpu_per_gb": "s/GB",
    "median_time": "s",  # of a fleet: of its middle node
    "predicted": "s",  # by a model
    "error": "share",  # of a model's figure against the measured one
    "sync_time": "s",  # of a write: in fsync
    "close_time": "s",  # of a write: in close, after fsync
    "close_share": "share",  # of the whole write
    "again_time": "s",  # of a listing: the second one through the same mount
    "peak_pss": "MiB",
    "idle_pss": "MiB",
    "over_budget": "MiB",
    "inside": "s",  # of a start: from the first line of the program in the container on
    "install": "s",  # until the job may go on
    "imports": "s",  # of modules, by an interpreter that is started for it
    "net": "s",  # without the imports alone, from memory
    "published": "s",  # until others find it
    "pull": "s",  # of a start: until containerd says that the image is there
    "local": "s",  # of a start: until all of the image is on this host
    "cpu": "s",  # user and system time, of a start: of the services behind it, of what it compiles, or of the machine
    "datanode_cpu": "s",  # of a start: of that, what DataNodes used
    "image_stage": "s",  # of a job's start, as `bench.startup.stages` has it
    "dependencies_stage": "s",
    "checkpoint_stage": "s",
    "step_stage": "s",  # building the model and its first step
    "overlapped": "s",  # during which two of the stages went on
    "slowest": "s",  # of nodes that start together
    "median": "s",
    "prepared": "ms",  # of a snapshot: Prepare and Mounts
    "answered": "ms",  # from a request to the daemon to its answer
    "moved": "MB",  # over the link, headers included
    "fetched": "MB",  # the same without headers: plain bytes of the image, what DataNodes sent of a checkpoint
    "fetched_share": "share",  # of the file's size
    "kept": "share",  # of the file that the cache has once it is settled
    "warm_time": "s",  # of `stripefs warm`, before what is loaded
    "stored": "MB",
    "metadata": "MB",
    "recall": "share",  # of the bytes a start touched: those fetched ahead
    "precision": "share",  # of the bytes fetched ahead: those touched
}


@dataclass(slots=True)
class Samples:
    """series[key][round] is one measured value."""

    series: dict[Key, dict[int, float]] = field(default_factory=dict)

    def add(self, case: str, system: str, number: int, values: Mapping[str, float]) -> None:
        """Keep what one run of `system` in round `number` gave, by metric."""
        for metric, value in values.items():
            self.series.setdefault(Key(case, system, metric), {})[number] = value

    def get(self, key: Key) -> dict[int, float]:
        return self.series.get(key, {})

    def best(self, case: str, systems: Iterable[str], metric: str = "throughput", *, least: bool = False) -> str | None:
        """The system with the highest median, or with the lowest, None where none was measured.

        One system is chosen for all rounds: taking the best of each round anew would reward luck.
        """
        measured = [
            (statistics.median(values.values()), s) for s in systems if (values := self.get(Key(case, s, metric)))
        ]
        return (min if least else max)(measured)[1] if measured else None

    def call_best(
        self, case: str, systems: Iterable[str], name: str, metric: str = "throughput", *, least: bool = False
    ) -> None:
        """Let the series of the best of `systems` have another name as well, where one of them was measured."""
        best = self.best(case, systems, metric, least=least)
        for key in [key for key in self.series if (key.case, key.system) == (case, best)]:
            self.series[Key(case, name, key.metric)] = self.series[key]

    def rows(self) -> list[Row]:
        rows = []
        for key, values in self.series.items():
            middle, low, high = spread(list(values.values()))
            unit = UNITS[key.metric]
            rows.append(Row(key.case, key.system, key.metric, unit, middle, low, high, len(values)))
        return rows


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of at least one value."""
    return statistics.median(values), min(values), max(values)


def quotients(upper: Mapping[int, float], lower: Mapping[int, float]) -> list[float]:
    """upper / lower of each round that has both."""
    return [upper[number] / lower[number] for number in sorted(upper.keys() & lower.keys())]


def needed(plans: Iterable[RatioPlan], cases: Iterable[str]) -> set[tuple[str, str]]:
    """The (case, system) of both sides of each ratio whose upper side is in one of `cases`."""
    wanted = set(cases)
    keys = (key for plan in plans if plan.upper.case in wanted for key in (plan.upper, plan.lower))
    return {(key.case, key.system) for key in keys if key is not None}


def sum_up(samples: Samples, plans: Sequence[RatioPlan]) -> list[Ratio]:
    """The ratios that the samples allow.

    Where one side was measured once (a size, say) its median stands in every round of the other.
    """
    found = []
    for plan in plans:
        upper = samples.get(plan.upper)
        values = list(upper.values()) if plan.lower is None else quotients(*_matched(upper, samples.get(plan.lower)))
        if values:
            found.append(Ratio(plan.name, *spread(values)))
    return found


def _matched(upper: Mapping[int, float], lower: Mapping[int, float]) -> tuple[Mapping[int, float], Mapping[int, float]]:
    if len(lower) == 1 < len(upper):
        lower = dict.fromkeys(upper, statistics.median(lower.values()))
    if len(upper) == 1 < len(lower):
        upper = dict.fromkeys(lower, statistics.median(upper.values()))
    return upper, lower


@dataclass(slots=True)
class Document:
    """The content of `--json`. `notes` tells what could not be measured and why, a sentence each."""

    bench: str
    version: str
    environment: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        document = {
            "bench": self.bench,
            "version": self.version,
            "environment": self.environment,
            "rows": [{name: _rounded(getattr(row, name)) for name in Row.__slots__} for row in self.rows],
            "ratios": [{name: _rounded(getattr(ratio, name)) for name in Ratio.__slots__} for ratio in self.ratios],
            "notes": self.notes,
        }
        return json.dumps(document, indent=2) + "\n"

    def row(self, case: str, system: str, metric: str = "throughput") -> Row | None:
        wanted = (case, system, metric)
        return next((row for row in self.rows if (row.case, row.system, row.metric) == wanted), None)


def load(file: Path) -> Document:
    """The inverse of `Document.to_json`. Raises ValueError for anything else."""
    try:
        data = json.loads(file.read_text())
        return Document(
            data["bench"],
            data["version"],
            data["environment"],
            [Row(**row) for row in data["rows"]],
            [Ratio(**ratio) for ratio in data["ratios"]],
            data.get("notes", []),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not hold what `bench … --json` writes: {error}") from error


Draw = Callable[[Samples, Document], None]
"""Sets a document's rows and ratios anew from the samples."""


def draw(plans: Sequence[RatioPlan]) -> Draw:
    """The rows of all series, and the ratios of `plans`."""

    def drawn(samples: Samples, document: Document) -> None:
        document.rows, document.ratios = samples.rows(), sum_up(samples, plans)

    return drawn


def _rounded(value: Any) -> Any:
    """Four significant digits are more than any run repeats."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
