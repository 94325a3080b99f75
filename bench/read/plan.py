"""The plan of `bench read` as tables: its files, its runs (a case and a system each), its ratios and its report.

A case brings the runs named after it and those of other cases that its ratios need. Runs on one file at one rate form
a group, whose rounds are interleaved, so that each quotient compares neighbours in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.harness import mounts
from bench.harness.cluster import CAPPED
from bench.harness.data import GIB, MIB, DataFile
from bench.harness.mounts import Mount
from bench.harness.report import Bar, Bars, Facts, Report, hdfs, machine
from bench.harness.results import Document, Key, Metric, RatioPlan, needed
from bench.read.driver import ReadDriver

__all__ = ["BEST_OF", "CASES", "RAW", "REPORT", "TRANSPORTS", "Run", "Scale", "choose", "ratios", "runs"]

RAW = "raw_parallel"
_BOUNDED = "rclone_bounded"
BEST_OF = (RAW, "rclone", _BOUNDED)
"""Families, `FAMILY:NUMBER`, whose best member is known by the family's name."""

_THREADS = (8, 16, 32, 64)
TRANSPORTS = ("native", "webhdfs", "libhdfs")
_BOUNDED_STREAMS = (32, 64)  # of 8 MiB each: a quarter and a half of the usual budget
_HANGS_AFTER = 60.0  # seconds; stripefs needs about five for this file

CASES = (
    "uncapped",
    "sequential",
    "sequential_256mib",
    "direct_threads",
    "torch_load",
    "sequential_repl3",
    "large_blocks",
    "mmap",
    "frozen_datanode",
)


_QUICK = {
    "uncapped": {
        "single_stream",
        "raw_parallel:32",
        "rclone:32",
        "stripefs",
        "stripefs:direct",
        "stripefs:fetch_on",
        "stripefs:fetch_off",
        "stripefs:native",
        "stripefs:webhdfs",
    },
    "sequential": {
        "one_datanode",
        "raw_parallel:32",
        "rclone:32",
        "single_stream",
        "stripefs",
        "api",
        "stripefs:native",
        "stripefs:webhdfs",
        "stripefs_bounded",
        "rclone_bounded:32",
    },
    "sequential_256mib": {"one_datanode", "stripefs"},
    "direct_threads": {"stripefs", "api"},
    "torch_load": {"stripefs", "api"},
    "sequential_repl3": {"raw_parallel:32", "stripefs"},
    "large_blocks": {"one_datanode", "stripefs"},
    "mmap": {"stripefs", "stripefs:sequential"},
    "frozen_datanode": {"stripefs", "stripefs:normal"},
}
"""The systems of each case that a quick run keeps: what the targets need."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of reading. `size` of most files and `budget` of most mounts in bytes; `rclone` is its binary."""

    quick: bool
    size: int
    budget: int
    rclone: Path | None
    libhdfs: bool

    @property
    def tight(self) -> int:
        """The budget of the case `large_blocks`: eight blocks of 64 MiB."""
        return min(self.budget, 512 * MIB)

    def file(self, name: str, block_mib: int, replication: int = 1) -> DataFile:
        return DataFile(name, self.size, block_mib * MIB, replication, name == "model.safetensors")


Measure = Callable[[ReadDriver, int], dict[str, float]]
"""The measurement of a run, in the round of this number."""


@dataclass(frozen=True, slots=True)
class Run:
    """`rate` is the cap of each DataNode in bytes a second, 0 for none. `rounds` limits how often it runs."""

    case: str
    system: str
    file: DataFile
    measure: Measure
    rate: float = CAPPED
    rounds: int = 1 << 30


def runs(scale: Scale) -> list[Run]:
    """Every run there is, in the order in which the first round makes them."""
    made = _uncapped(scale) + _sequential(scale) + _patterns(scale) + _other_files(scale) + _frozen(scale)
    if scale.quick:
        made = [run for run in made if run.system in _QUICK[run.case]]
    return [run for run in made if scale.libhdfs or "libhdfs" not in run.system]


def _uncapped(scale: Scale) -> list[Run]:
    file = scale.file("blocks8-repl1", 8)
    made = [
        _stream("uncapped", file),
        *_raw("uncapped", file),
        _client("uncapped", "raw_webhdfs", file, "webhdfs", 24),
        _client("uncapped", "raw_libhdfs", file, "libhdfs", 32),
        *_stripefs(scale, "uncapped", file, ("auto", "native", "webhdfs", "libhdfs")),
        # Without the page cache: what a mount costs where first touching so much memory is dear.
        _mounted(scale, "uncapped", "stripefs:direct", file, "direct", "auto"),
        *(
            _mounted(scale, "uncapped", f"stripefs:{name}:direct", file, "direct", name)
            for name in ("native", "webhdfs")
        ),
        *(_fetching(scale, "uncapped", f"stripefs:fetch_{when}", file, when) for when in ("on", "off")),
        *_rclone(scale, "uncapped", file, (32,)),
    ]
    return [replace(run, rate=0.0) for run in made]


def _sequential(scale: Scale) -> list[Run]:
    file = scale.file("blocks8-repl1", 8)
    return [
        _one_datanode("sequential", file),
        *_stripefs(scale, "sequential", file, ("auto", *TRANSPORTS)),
        _program(scale, "sequential", file, "sequential"),
        *_raw("sequential", file),
        _client("sequential", "raw_webhdfs", file, "webhdfs", 24),
        _client("sequential", "raw_libhdfs", file, "libhdfs", 32),
        *_rclone(scale, "sequential", file, (16, 32)),
        *_bounded(scale, "sequential", file),
        _stream("sequential", file),
    ]


def _patterns(scale: Scale) -> list[Run]:
    file, tensors = scale.file("blocks8-repl1", 8), scale.file("model.safetensors", 8)
    return [
        _mounted(scale, "direct_threads", "stripefs", file, "direct"),
        _program(scale, "direct_threads", file, "direct"),
        _mounted(scale, "torch_load", "stripefs", file, "torch_load"),
        _program(scale, "torch_load", file, "torch_load"),
        _mounted(scale, "mmap", "stripefs:sequential", tensors, "sequential"),
        _mounted(scale, "mmap", "stripefs", tensors, "mmap_alternate"),
        _mounted(scale, "mmap", "stripefs:all", tensors, "mmap_all"),
    ]


def _other_files(scale: Scale) -> list[Run]:
    copies, large = scale.file("blocks8-repl3", 8, 3), scale.file("blocks64-repl1", 64)
    small = DataFile("blocks8-256mib", 256 * MIB, 8 * MIB)
    large = replace(large, size=max(large.size, 512 * MIB))  # a block for each DataNode at least
    tight = replace(scale, budget=scale.tight)
    return [
        _one_datanode("sequential_256mib", small),
        *_stripefs(scale, "sequential_256mib", small, ("auto",)),
        *_stripefs(scale, "sequential_repl3", copies, ("auto", "native", "webhdfs")),
        *_raw("sequential_repl3", copies),
        _one_datanode("large_blocks", large),
        *_stripefs(tight, "large_blocks", large, ("auto", "native", "webhdfs")),
        *_raw("large_blocks", large),
        *_rclone(scale, "large_blocks", large, (32,)),
    ]


def _frozen(scale: Scale) -> list[Run]:
    case, file = "frozen_datanode", scale.file("blocks8-repl2", 8, 2)
    file = replace(file, size=min(file.size, GIB))
    made = []
    for transport in ("auto", "native", "webhdfs"):
        name = _name(transport)
        made += [
            _mounted(scale, case, f"{name}:normal", file, "sequential", transport),
            _freezing(case, name, file, _stripefs_mount(transport, scale.budget)),
        ]
    if scale.rclone:
        [normal] = _rclone(scale, case, file, (32,))
        made += [
            Run(case, f"{normal.system}:normal", file, normal.measure, rounds=1),
            _freezing(case, normal.system, file, _rclone_mount(scale.rclone, 32), rounds=1),
        ]
    return made


def _client(case: str, system: str, file: DataFile, kind: str, threads: int = 1) -> Run:
    return Run(case, system, file, lambda driver, _: driver.client(file, kind, threads))


def _stream(case: str, file: DataFile) -> Run:
    return _client(case, "single_stream", file, "single_stream")


def _raw(case: str, file: DataFile) -> list[Run]:
    return [_client(case, f"{RAW}:{count}", file, "native", count) for count in _THREADS]


def _one_datanode(case: str, file: DataFile) -> Run:
    return Run(case, "one_datanode", file, lambda driver, number: driver.one_datanode(file, number))


Mounting = Callable[[ReadDriver], AbstractContextManager[Mount]]


def _stripefs_mount(transport: str, budget: int) -> Mounting:
    return lambda driver: mounts.stripefs(driver.cluster, transport, budget, driver.environment)


def _rclone_mount(binary: Path, streams: int) -> Mounting:
    return lambda driver: mounts.rclone(driver.cluster, binary, streams)


def _name(transport: str) -> str:
    return "stripefs" if transport == "auto" else f"stripefs:{transport}"


def _mounted(scale: Scale, case: str, system: str, file: DataFile, pattern: str, transport: str = "auto") -> Run:
    mounting = _stripefs_mount(transport, scale.budget)
    return Run(case, system, file, lambda driver, _: driver.mounted(mounting(driver), file, pattern, scale.budget))


def _fetching(scale: Scale, case: str, system: str, file: DataFile, when: str) -> Run:
    """A sequential reader with `--fetch-process` on or off."""

    def measure(driver: ReadDriver, _number: int) -> dict[str, float]:
        environment = {**driver.environment, "STRIPEFS_FETCH_PROCESS": when}
        mounting = mounts.stripefs(driver.cluster, "auto", scale.budget, environment)
        return driver.mounted(mounting, file, "sequential", scale.budget)

    return Run(case, system, file, measure)


def _program(scale: Scale, case: str, file: DataFile, pattern: str) -> Run:
    return Run(case, "api", file, lambda driver, _: driver.program(file, pattern, scale.budget))


def _stripefs(scale: Scale, case: str, file: DataFile, transports: tuple[str, ...]) -> list[Run]:
    return [_mounted(scale, case, _name(transport), file, "sequential", transport) for transport in transports]


def _rclone(scale: Scale, case: str, file: DataFile, streams: tuple[int, ...]) -> list[Run]:
    if scale.rclone is None:
        return []
    return [_through(_rclone_mount(scale.rclone, count), case, f"rclone:{count}", file) for count in streams]


def _bounded(scale: Scale, case: str, file: DataFile) -> list[Run]:
    """Both mounts with the same limit of memory: the usual budget, in which all of their processes have to stay."""
    limit, binary = scale.budget, scale.rclone
    if binary is None:
        return []

    def ours(driver: ReadDriver, _number: int) -> dict[str, float]:
        mounting = mounts.stripefs(driver.cluster, "auto", 0, driver.environment, limit=limit)
        return driver.mounted(mounting, file, "sequential", limit)

    def theirs(driver: ReadDriver, _number: int, streams: int = 0) -> dict[str, float]:
        mounting = mounts.rclone(driver.cluster, binary, streams, limit=limit)
        return driver.mounted(mounting, file, "sequential", limit)

    return [
        Run(case, "stripefs_bounded", file, ours),
        *(Run(case, f"{_BOUNDED}:{count}", file, partial(theirs, streams=count)) for count in _BOUNDED_STREAMS),
    ]


def _through(mounting: Mounting, case: str, system: str, file: DataFile) -> Run:
    return Run(case, system, file, lambda driver, _: driver.mounted(mounting(driver), file, "sequential"))


def _freezing(case: str, system: str, file: DataFile, mounting: Mounting, rounds: int = 1 << 30) -> Run:
    return Run(
        case,
        system,
        file,
        lambda driver, number: driver.frozen(mounting(driver), file, number, _HANGS_AFTER),
        rounds=rounds,
    )


def ratios() -> list[RatioPlan]:
    """Every ratio; those without a suffix are the targets."""
    sequential, limit = Key("sequential", "stripefs"), Key("sequential", "placement_limit")
    raw, single = Key("sequential", RAW), Key("sequential", "single_stream")
    large, copies, frozen, short = "large_blocks", "sequential_repl3", "frozen_datanode", "sequential_256mib"
    made = [
        _least("seq_vs_placement_limit", sequential, limit, 0.9),
        _least("seq_256mib_vs_placement_limit", Key(short, "stripefs"), Key(short, "placement_limit"), 0.88),
        _least("seq_vs_raw_parallel", sequential, raw, 0.92),
        _least("seq_repl3_vs_raw_parallel", Key(copies, "stripefs"), Key(copies, RAW), 0.95),
        _least("seq_vs_single_stream", sequential, single),
        _least("large_blocks_vs_placement_limit", Key(large, "stripefs"), Key(large, "placement_limit"), 0.85),
        _least("mmap_two_processes_vs_seq", Key("mmap", "stripefs"), Key("mmap", "stripefs:sequential"), 0.8),
        _least("mmap_two_processes_vs_seq_all", Key("mmap", "stripefs:all"), Key("mmap", "stripefs:sequential")),
        _least("torch_load_vs_seq", Key("torch_load", "stripefs"), sequential, 0.8),
        _least("api_read_vs_mount_read", Key("sequential", "api"), sequential, 0.97),
        *(
            _least(f"api_read_vs_mount_read_{case}", Key(case, "api"), Key(case, "stripefs"))
            for case in ("direct_threads", "torch_load")
        ),
        _least("direct_threads_vs_raw_parallel", Key("direct_threads", "stripefs"), raw, 0.9),
        RatioPlan(
            "frozen_datanode_time_vs_normal",
            Key(frozen, "stripefs", "time"),
            Key(frozen, "stripefs:normal", "time"),
            2.0,
        ),
        _least("seq_vs_rclone", sequential, Key("sequential", "rclone"), 1.05),
        _least("seq_vs_rclone_equal_memory", Key("sequential", "stripefs_bounded"), Key("sequential", _BOUNDED), 1.05),
        RatioPlan(
            "memory_vs_rclone_equal_memory",
            Key("sequential", "stripefs_bounded", "peak_pss"),
            Key("sequential", _BOUNDED, "peak_pss"),
        ),
        _least("uncapped_fetch_on_vs_off", Key("uncapped", "stripefs:fetch_on"), Key("uncapped", "stripefs:fetch_off")),
        RatioPlan(
            "uncapped_fetch_on_vs_off_cpu_per_gb",
            Key("uncapped", "stripefs:fetch_on", "cpu_per_gb"),
            Key("uncapped", "stripefs:fetch_off", "cpu_per_gb"),
        ),
        _least("large_blocks_vs_rclone", Key(large, "stripefs"), Key(large, "rclone")),
    ]
    for suffix in ("", ":direct"):
        end = suffix.replace(":", "_")
        ours, native = Key("uncapped", f"stripefs{suffix}"), Key("uncapped", f"stripefs:native{suffix}")
        cost, web = (
            Key("uncapped", f"stripefs{suffix}", "cpu_per_gb"),
            Key("uncapped", f"stripefs:webhdfs{suffix}", "cpu_per_gb"),
        )
        stream = Key("uncapped", "single_stream", "cpu_per_gb")
        made += [
            _least(f"uncapped{end}_vs_single_stream", ours, Key("uncapped", "single_stream"), 0.0 if end else 1.0),
            _least(f"uncapped{end}_vs_rclone", ours, Key("uncapped", "rclone"), 0.0 if end else 1.5),
            RatioPlan(f"uncapped{end}_cpu_per_gb_vs_single_stream", cost, stream, 0.0 if end else 1.1),
            _least(f"uncapped_native{end}_vs_raw_parallel", native, Key("uncapped", RAW), 0.0 if end else 0.6),
            RatioPlan(f"uncapped_webhdfs{end}_cpu_per_gb_vs_single_stream", web, stream, 0.0 if end else 1.3),
        ]
    for transport in TRANSPORTS:
        own = Key("sequential", _name(transport))
        made += [
            _least(f"seq_vs_placement_limit_{transport}", own, limit),
            _least(f"seq_vs_raw_parallel_{transport}", own, raw),
        ]
    for transport in ("native", "webhdfs"):
        name, end = _name(transport), f"_{transport}"
        made += [
            _least("seq_repl3_vs_raw_parallel" + end, Key(copies, name), Key(copies, RAW)),
            _least("large_blocks_vs_placement_limit" + end, Key(large, name), Key(large, "placement_limit")),
            _least(
                "frozen_datanode_time_vs_normal" + end, Key(frozen, name, "time"), Key(frozen, f"{name}:normal", "time")
            ),
        ]
    return made


def _least(name: str, upper: Key, lower: Key, bound: float = 0.0) -> RatioPlan:
    """A ratio that should be large."""
    return RatioPlan(name, upper, lower, bound, at_least=True)


def choose(all_runs: Sequence[Run], cases: Iterable[str]) -> list[Run]:
    """The runs of `cases`, all where none is named, and those of other cases that their ratios need."""
    wanted = set(cases) or set(CASES)
    keys = needed(ratios(), wanted)
    return [run for run in all_runs if run.case in wanted or keys & {(run.case, name) for name in _names(run.system)}]


def _names(system: str) -> set[str]:
    """Its names in ratios: its own, and that of the family of which it may be the best."""
    family = system.partition(":")[0]
    return {system, family} if family in BEST_OF else {system}


# -- report ------------------------------------------------------------------------------------------------------------

_CHARTED = {
    "placement_limit": "what placement allows",
    "stripefs": "stripefs",
    "raw_parallel": "raw parallel read_range",
    "raw_libhdfs": "raw parallel libhdfs",
    "rclone": "rclone, chunk streams",
    "single_stream": "one hdfs-native stream",
    "one_datanode": "one DataNode alone",
}


def _head(facts: Facts) -> str:
    return (
        f"{facts['rounds']} rounds; {facts['datanodes']} DataNodes behind {facts['rate_mb_s']:g} MB/s each; "
        f"files of {facts['file_mib']} MiB; budget {facts['budget_mib']} MiB; {machine(facts, hdfs(facts))}"
    )


def _chart(document: Document) -> Bars:
    rows = {name: document.row("sequential", name) for name in _CHARTED}
    facts = document.environment
    return Bars(
        [Bar(_CHARTED[name], row, ours=name == "stripefs") for name, row in rows.items() if row],
        of="sequential reads",
        title=f"One {facts['file_mib']} MiB file in 8 MiB blocks on {facts['datanodes']} DataNodes "
        f"of {facts['rate_mb_s']:g} MB/s each",
        scale="MB/s, median with lowest and highest round",
        digits=0,
        width=7.5,
        height=0.45,
    )


REPORT = Report(
    ratios=[*ratios(), RatioPlan("memory_over_budget_mib", Key("", "stripefs", "over_budget"), None, 150.0)],
    columns=("throughput", "time", "cpu_per_gb", "datanode_cpu_per_gb", "peak_pss"),
    metrics={"time": Metric("s", "s", 1)},
    cases=CASES,
    spread="",
    head=_head,
    chart=_chart,
)
