"""What `bench read` measures: its files, its runs (a case and a system each) and its ratios, as tables.

A case brings the runs named after it and those of other cases that its ratios need. Runs on one file at one rate form
a group, whose rounds are interleaved, so that each quotient compares neighbours in time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import mounts
from bench.data import GIB, MIB, DataFile
from bench.lab import Lab
from bench.mounts import Mount
from bench.results import Key

__all__ = ["CAPPED", "CASES", "RAW", "TRANSPORTS", "RatioPlan", "Run", "Scale", "ratios", "runs"]

CAPPED = 40e6  # bytes a second of each DataNode
RAW = "raw_parallel"
_THREADS = (8, 16, 32, 64)
TRANSPORTS = ("native", "webhdfs", "libhdfs")
_HANGS_AFTER = 60.0  # seconds; stripefs needs about five for this file

CASES = (
    "uncapped",
    "sequential",
    "direct_threads",
    "torch_load",
    "sequential_repl3",
    "large_blocks",
    "mmap",
    "frozen_datanode",
)


_QUICK = {
    "uncapped": {"single_stream", "raw_parallel:32", "stripefs:native", "stripefs:webhdfs"},
    "sequential": {
        "one_datanode",
        "raw_parallel:32",
        "rclone:32",
        "single_stream",
        "stripefs",
        "api",
        "stripefs:native",
        "stripefs:webhdfs",
    },
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
    """How much is measured. `size` of most files and `budget` of most mounts in bytes; `rclone` is its binary."""

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


Measure = Callable[[Lab, int], dict[str, float]]
"""What a run does: in a lab, in the round of this number."""


@dataclass(frozen=True, slots=True)
class Run:
    """`rate` is the cap of each DataNode in bytes a second, 0 for none. `rounds` limits how often it runs."""

    case: str
    system: str
    file: DataFile
    measure: Measure
    rate: float = CAPPED
    rounds: int = 1 << 30


@dataclass(frozen=True, slots=True)
class RatioPlan:
    """upper / lower. `bound` is the target, `at_least` its direction; a bound of 0 means that it is only reported."""

    name: str
    upper: Key
    lower: Key
    bound: float = 0.0
    at_least: bool = True


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
        *_stripefs(scale, "uncapped", file, ("native", "webhdfs", "libhdfs")),
        # Without the page cache: what a mount costs where first touching so much memory is dear.
        *(
            _mounted(scale, "uncapped", f"stripefs:{name}:direct", file, "direct", name)
            for name in ("native", "webhdfs")
        ),
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
    large = replace(large, size=max(large.size, 512 * MIB))  # a block for each DataNode at least
    tight = replace(scale, budget=scale.tight)
    return [
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
    return Run(case, system, file, lambda lab, _: lab.client(file, kind, threads))


def _stream(case: str, file: DataFile) -> Run:
    return _client(case, "single_stream", file, "single_stream")


def _raw(case: str, file: DataFile) -> list[Run]:
    return [_client(case, f"{RAW}:{count}", file, "native", count) for count in _THREADS]


def _one_datanode(case: str, file: DataFile) -> Run:
    return Run(case, "one_datanode", file, lambda lab, number: lab.one_datanode(file, number))


Mounting = Callable[[Lab], AbstractContextManager[Mount]]


def _stripefs_mount(transport: str, budget: int) -> Mounting:
    return lambda lab: mounts.stripefs(lab.cluster, transport, budget, lab.environment)


def _rclone_mount(binary: Path, streams: int) -> Mounting:
    return lambda lab: mounts.rclone(lab.cluster, binary, streams)


def _name(transport: str) -> str:
    return "stripefs" if transport == "auto" else f"stripefs:{transport}"


def _mounted(scale: Scale, case: str, system: str, file: DataFile, pattern: str, transport: str = "auto") -> Run:
    mounting = _stripefs_mount(transport, scale.budget)
    return Run(case, system, file, lambda lab, _: lab.mounted(mounting(lab), file, pattern, scale.budget))


def _program(scale: Scale, case: str, file: DataFile, pattern: str) -> Run:
    return Run(case, "api", file, lambda lab, _: lab.program(file, pattern, scale.budget))


def _stripefs(scale: Scale, case: str, file: DataFile, transports: tuple[str, ...]) -> list[Run]:
    return [_mounted(scale, case, _name(transport), file, "sequential", transport) for transport in transports]


def _rclone(scale: Scale, case: str, file: DataFile, streams: tuple[int, ...]) -> list[Run]:
    if scale.rclone is None:
        return []
    return [_through(_rclone_mount(scale.rclone, count), case, f"rclone:{count}", file) for count in streams]


def _through(mounting: Mounting, case: str, system: str, file: DataFile) -> Run:
    return Run(case, system, file, lambda lab, _: lab.mounted(mounting(lab), file, "sequential"))


def _freezing(case: str, system: str, file: DataFile, mounting: Mounting, rounds: int = 1 << 30) -> Run:
    return Run(
        case, system, file, lambda lab, number: lab.frozen(mounting(lab), file, number, _HANGS_AFTER), rounds=rounds
    )


def ratios() -> list[RatioPlan]:
    """Every ratio; those without a suffix are the targets."""
    sequential, limit = Key("sequential", "stripefs"), Key("sequential", "placement_limit")
    raw, single = Key("sequential", RAW), Key("sequential", "single_stream")
    large, copies, frozen = "large_blocks", "sequential_repl3", "frozen_datanode"
    made = [
        RatioPlan("seq_vs_placement_limit", sequential, limit, 0.9),
        RatioPlan("seq_vs_raw_parallel", sequential, raw, 0.92),
        RatioPlan("seq_repl3_vs_raw_parallel", Key(copies, "stripefs"), Key(copies, RAW), 0.95),
        RatioPlan("seq_vs_single_stream", sequential, single),
        RatioPlan("large_blocks_vs_placement_limit", Key(large, "stripefs"), Key(large, "placement_limit"), 0.85),
        RatioPlan("mmap_two_processes_vs_seq", Key("mmap", "stripefs"), Key("mmap", "stripefs:sequential"), 0.8),
        RatioPlan("mmap_two_processes_vs_seq_all", Key("mmap", "stripefs:all"), Key("mmap", "stripefs:sequential")),
        RatioPlan("torch_load_vs_seq", Key("torch_load", "stripefs"), sequential, 0.8),
        RatioPlan("api_read_vs_mount_read", Key("sequential", "api"), sequential, 0.97),
        *(
            RatioPlan(f"api_read_vs_mount_read_{case}", Key(case, "api"), Key(case, "stripefs"))
            for case in ("direct_threads", "torch_load")
        ),
        RatioPlan("direct_threads_vs_raw_parallel", Key("direct_threads", "stripefs"), raw, 0.9),
        RatioPlan(
            "frozen_datanode_time_vs_normal",
            Key(frozen, "stripefs", "time"),
            Key(frozen, "stripefs:normal", "time"),
            2.0,
            at_least=False,
        ),
        RatioPlan("seq_vs_rclone", sequential, Key("sequential", "rclone"), 1.05),
        RatioPlan("large_blocks_vs_rclone", Key(large, "stripefs"), Key(large, "rclone")),
    ]
    for suffix in ("", ":direct"):
        end = suffix.replace(":", "_")
        native, web = (
            Key("uncapped", f"stripefs:native{suffix}"),
            Key("uncapped", f"stripefs:webhdfs{suffix}", "cpu_per_gb"),
        )
        stream = Key("uncapped", "single_stream", "cpu_per_gb")
        made += [
            RatioPlan(f"uncapped_native{end}_vs_raw_parallel", native, Key("uncapped", RAW), 0.0 if end else 0.6),
            RatioPlan(
                f"uncapped_webhdfs{end}_cpu_per_gb_vs_single_stream", web, stream, 0.0 if end else 1.3, at_least=False
            ),
        ]
    for transport in TRANSPORTS:
        own = Key("sequential", _name(transport))
        made += [
            RatioPlan(f"seq_vs_placement_limit_{transport}", own, limit),
            RatioPlan(f"seq_vs_raw_parallel_{transport}", own, raw),
        ]
    for transport in ("native", "webhdfs"):
        name, end = _name(transport), f"_{transport}"
        made += [
            RatioPlan("seq_repl3_vs_raw_parallel" + end, Key(copies, name), Key(copies, RAW)),
            RatioPlan("large_blocks_vs_placement_limit" + end, Key(large, name), Key(large, "placement_limit")),
            RatioPlan(
                "frozen_datanode_time_vs_normal" + end, Key(frozen, name, "time"), Key(frozen, f"{name}:normal", "time")
            ),
        ]
    return made
