"""Samples of a benchmark, and the rows, ratios and JSON document that are made of them.

A sample belongs to a case, a system, a metric and a round. Ratios are made round by round, because what disturbs a
round disturbs both of its sides, and then summed up: the median of the quotients, with the lowest and the highest.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "METRICS",
    "Document",
    "Key",
    "Metric",
    "Ratio",
    "RatioPlan",
    "Row",
    "Samples",
    "Summarize",
    "load",
    "needed",
    "quotients",
    "spread",
    "sum_up",
    "summary",
    "time_of",
]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one series of samples."""

    case: str
    system: str
    metric: str = "throughput"


def time_of(case: str, system: str) -> Key:
    """The series of a system's times."""
    return Key(case, system, "time")


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


class Metric(NamedTuple):
    """Of a series of samples: its unit, and its column in tables, by head and digits after the point."""

    unit: str
    head: str
    digits: int


METRICS = {
    "throughput": Metric("MB/s", "MB/s", 0),  # 10^6 bytes, as disks and links count
    "time": Metric("s", "s", 2),
    "cpu_per_gb": Metric("s/GB", "CPU s/GB", 2),  # user and system time of all processes of the system, reader included
    "user_per_gb": Metric("s/GB", "user s/GB of the server", 2),  # of a mount: its server's own instructions
    "system_per_gb": Metric("s/GB", "kernel s/GB of the server", 2),  # of a mount: the kernel's work for its server
    "datanode_cpu_per_gb": Metric("s/GB", "DataNodes' CPU s/GB", 2),
    "stall": Metric("ms", "longest ms without another task", 1),
    "memory": Metric("MiB", "MiB more", 1),  # of a mount, for what it knows or holds open
    "each": Metric("bytes", "bytes each", 0),  # of that memory, for one file or name
    "relative": Metric("ratio", "times that of the smallest", 2),  # in the same process, in turn
    "exponent": Metric("exponent", "exponent", 2),  # of cost over size
    "calls_per_file": Metric("calls", "calls a file", 1),  # to the NameNode, by its own count
    "calls_per_gb": Metric("calls/GB", "calls a GB", 1),
    "calls_per_s": Metric("calls/s", "calls a second", 1),
    "median_time": Metric("s", "s, middle node", 2),  # of a fleet: of its middle node
    "predicted": Metric("s", "s by the model", 2),  # by a model
    "error": Metric("share", "error", 3),  # of a model's figure against the measured one
    "sync_time": Metric("s", "s in fsync", 2),  # of a write: in fsync
    "close_time": Metric("s", "s in close", 2),  # of a write: in close, after fsync
    "close_share": Metric("share", "share of close", 3),  # of the whole write
    "again_time": Metric("s", "s again", 2),  # of a listing: the second one through the same mount
    "peak_pss": Metric("MiB", "peak MiB", 0),
    "idle_pss": Metric("MiB", "idle MiB", 0),
    "over_budget": Metric("MiB", "over budget MiB", 0),
    "inside": Metric("s", "s inside", 2),  # of a start: from the first line of the program in the container on
    "install": Metric("s", "s until the job goes on", 2),  # until the job may go on
    "imports": Metric("s", "s of imports", 2),  # of modules, by an interpreter that is started for it
    "net": Metric("s", "s net", 2),  # without the imports alone, from memory
    "published": Metric("s", "s until published", 1),  # until others find it
    "pull": Metric("s", "s of the pull", 2),  # of a start: until containerd says that the image is there
    "local": Metric("s", "s until local", 1),  # of a start: until all of the image is on this host
    "cpu": Metric("s", "CPU s", 2),  # user and system time, of a start: services, compilers, or the machine
    "datanode_cpu": Metric("s", "DataNodes' CPU s", 1),  # of that, what DataNodes used
    "image_stage": Metric("s", "image s", 2),  # of a job's start, as `bench.startup.stages` has it
    "dependencies_stage": Metric("s", "deps s", 2),
    "checkpoint_stage": Metric("s", "checkpoint s", 2),
    "step_stage": Metric("s", "model, step s", 2),  # building the model and its first step
    "overlapped": Metric("s", "s overlapped", 2),  # during which two of the stages went on
    "slowest": Metric("s", "s of the slowest node", 2),  # of nodes that start together
    "median": Metric("s", "s of the median node", 2),
    "prepared": Metric("ms", "ms", 2),  # of a snapshot: Prepare and Mounts
    "prepare": Metric("ms", "ms to prepare", 1),  # of `imagefs run`: until it executes the OCI runtime
    "answered": Metric("ms", "ms of the daemon", 0),  # from a request to the daemon to its answer
    "moved": Metric("MB", "MB moved", 1),  # over the link, headers included
    "fetched": Metric("MB", "MB fetched", 1),  # without headers: plain bytes of an image or a checkpoint
    "fetched_share": Metric("share", "share fetched", 3),  # of the file's size
    "kept": Metric("share", "kept", 2),  # of the file that the cache has once it is settled
    "warm_time": Metric("s", "s of warm", 2),  # of `stripefs warm`, before what is loaded
    "stored": Metric("MB", "MB stored", 1),
    "metadata": Metric("MB", "MB metadata", 1),
    "recall": Metric("share", "recall", 3),  # of the bytes a start touched: those fetched ahead
    "precision": Metric("share", "precision", 3),  # of the bytes fetched ahead: those touched
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
            unit = METRICS[key.metric].unit
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


Summarize = Callable[[Samples, Document], None]
"""Sets a document's rows and ratios anew from the samples."""


def summary(plans: Sequence[RatioPlan]) -> Summarize:
    """The rows of all series, and the ratios of `plans`."""

    def summarize(samples: Samples, document: Document) -> None:
        document.rows, document.ratios = samples.rows(), sum_up(samples, plans)

    return summarize


def _rounded(value: Any) -> Any:
    """Four significant digits are more than any run repeats."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
