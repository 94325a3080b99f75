"""Documents of benchmarks, made up: facts that all of them have, and what is read off their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.results import Document, Ratio, Row

__all__ = ["ON_HDFS", "document", "verdict"]

_MACHINE = {
    "rounds": 3,
    "cpus": 2,
    "cpu": "some CPU",
    "kernel": "6.18",
    "python": "3.11",
    "first_touch_s_per_gib": 0.4,
    "load_15min": 0.5,
}
ON_HDFS = {
    "datanodes": 8,
    "rate_mb_s": 40.0,
    "file_mib": 2048,
    "hadoop": "3.4.2",
    "packages": {"hdfs-native": "0.14.7"},
    "rclone": None,
}


def document(
    bench: str, facts: Mapping[str, Any], rows: Sequence[Row], ratios: Sequence[Ratio] = (), note: str = ""
) -> Document:
    """`facts`: what this benchmark says of its surroundings besides the machine."""
    return Document(bench, "0.1.0", {**_MACHINE, **facts}, [*rows], [*ratios], [note] if note else [])


def verdict(text: str, ratio: Ratio) -> str:
    """The verdict at the end of this ratio's line: met, missed, or neither."""
    (line,) = [line for line in text.splitlines() if line.startswith(ratio.name)]
    last = line.split()[-1]
    return last if last in ("met", "missed") else ""
