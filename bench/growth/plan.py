"""The plan of `bench growth` as tables: cases with their sizes, exponents, ratios, the report. Pure.

The exponent of a case is the slope of a straight line through the logarithms of size and cost: 1 where twice the size
costs twice as much, 0 where it costs the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.harness.report import Facts, Lines, Report, hdfs, machine
from bench.harness.results import METRICS, Document, Key, RatioPlan

__all__ = ["CASES", "COST", "REPORT", "SIZES", "exponent", "ratios", "sizes"]

CASES = {
    "find_block": "a cached block is looked for by its digest, among 500,000 of so many devices",
    "evict_blocks": "256 MiB of image blocks are evicted, of so many that are cached",
    "remove_device": "a device is removed all of whose blocks are cached, so many, until no table knows of them",
    "evict_segments": "1 % of a cache is evicted, which holds so many segments of files",
    "compact_journal": "the journal of a mount is compacted that holds so many inodes",
    "learn_inodes": "a mount comes to hold so many inodes, its kernel having asked for their names",
    "gc_images": "`imagefs gc` looks through a store of so many images",
    "build_image": "`imagefs build` of one small directory into a store of so many images",
    "list_files": "`ls -l` of a directory of so many files, on a fresh mount",
    "find_files": "`find` below it, on a fresh mount",
    "extract_files": "`tar x` of so many files of 1 kB",
    "sync_files": "`rsync -a` of so many files of 1 kB",
    "cached_names": "memory of a mount that has listed a directory of so many files",
    "open_files": "memory of a mount with so many open files",
    "readers": "so many readers of a local directory in memory at the same time, 256 MiB in all",
    "readers_hdfs": "the same of a file on HDFS",
}

SIZES: Mapping[str, Sequence[int]] = {
    "find_block": (1, 10, 50),
    "evict_blocks": (10**5, 10**6, 10**7),
    "remove_device": (10**5, 10**6, 10**7),
    "evict_segments": (10**3, 10**4, 10**5),
    "compact_journal": (10**4, 10**5, 10**6),
    "learn_inodes": (10**4, 10**5, 10**6),
    "gc_images": (10, 100, 1000, 10_000),
    "build_image": (10, 100, 1000, 10_000),
    "list_files": (100, 1000, 10_000, 100_000),
    "find_files": (100, 1000, 10_000, 100_000),
    "extract_files": (100, 300, 1000),
    "sync_files": (100, 300, 1000),
    "cached_names": (1000, 10_000, 100_000),
    "open_files": (1000, 4000),
    "readers": (1, 4, 16, 64),
    "readers_hdfs": (1, 4, 16, 64),
}

COST = {"cached_names": "memory", "open_files": "memory"}
"""The metric that is the cost of a case, where that is not its time."""

_CONSTANT = ("find_block", "evict_blocks", "build_image", "readers", "readers_hdfs")
"""Cases that do as much at each size."""

_ON_HDFS = ("list_files", "find_files", "extract_files", "sync_files", "cached_names", "open_files", "readers_hdfs")


def sizes(case: str, *, quick: bool) -> Sequence[int]:
    """The sizes of a case, from the smallest; a quick run leaves out the largest."""
    return SIZES[case][:-1] if quick and len(SIZES[case]) > 2 else SIZES[case]


def exponent(costs: Mapping[int, float]) -> float:
    """The slope of log cost over log size, by least squares. costs: by size, of at least two sizes, none 0."""
    points = [(math.log(size), math.log(cost)) for size, cost in costs.items()]
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    slope: float = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return slope


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first. Those of one system alone are its figures."""
    made = [
        RatioPlan("find_block_50_devices_vs_1", Key("find_block", "50", "relative"), None, 1.2),
        RatioPlan("eviction_1e7_blocks_stall_ms", Key("evict_blocks", "10000000", "stall"), None, 50.0),
        RatioPlan("eviction_1e5_segments_stall_ms", Key("evict_segments", "100000", "stall"), None, 50.0),
        RatioPlan("removal_1e6_blocks_stall_ms", Key("remove_device", "1000000", "stall"), None, 50.0),
        RatioPlan("inodes_1e6_stall_ms", Key("learn_inodes", "1000000", "stall"), None, 50.0),
        RatioPlan("compaction_1e6_inodes_stall_ms", Key("compact_journal", "1000000", "stall"), None, 50.0),
    ]
    made += [
        RatioPlan(f"{case}_exponent", Key(case, "exponent", "exponent"), None, 0.0 if case in _CONSTANT else 1.1)
        for case in CASES
    ]
    return made


def _head(facts: Facts) -> str:
    return (
        f"cases with files on HDFS ({', '.join(_ON_HDFS)}) on {facts['datanodes']} DataNodes without a cap; "
        f"{facts['rounds']} rounds. {machine(facts, hdfs(facts))}"
    )


def _chart(document: Document) -> Lines:
    lines = {}
    for case in CASES:
        found = {size: document.row(case, str(size), COST.get(case, "time")) for size in SIZES[case]}
        points = [(float(size), row.median) for size, row in found.items() if row is not None and row.median > 0]
        lines[case] = [(size, cost / points[0][1]) for size, cost in points]
    return Lines(
        {case: points for case, points in lines.items() if len(points) > 1},
        none="no case was measured at two sizes",
        title="Cost by size, as a multiple of that of the smallest",
        across="size",
        upwards="times the cost",
    )


REPORT = Report(
    ratios=ratios(),
    columns=("time", "relative", "stall", "memory", "each", "throughput", "exponent"),
    cases=list(CASES),
    systems=[*dict.fromkeys(str(size) for found in SIZES.values() for size in sorted(found)), "exponent"],
    spread="",
    head=_head,
    chart=_chart,
    metrics={"time": METRICS["time"]._replace(digits=4)},
)
