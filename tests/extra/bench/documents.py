"""Documents of benchmarks, made up."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness.results import Document, Ratio, Row

__all__ = ["FACTS", "document"]

_MACHINE = {
    "rounds": 3,
    "cpus": 2,
    "cpu": "some CPU",
    "kernel": "6.18",
    "python": "3.11",
    "first_touch_s_per_gib": 0.4,
    "load_15min": 0.5,
}
_ON_HDFS = {
    "datanodes": 8,
    "rate_mb_s": 40.0,
    "file_mib": 2048,
    "hadoop": "3.4.2",
    "packages": {"hdfs-native": "0.14.7"},
    "rclone": None,
}
_IMAGE = {"name": "standard", "layers": 3, "compressed_mb": 160.7, "size_mb": 458.6, "files": 14796}

FACTS: dict[str, dict[str, object]] = {
    "read": {**_ON_HDFS, "budget_mib": 1024},
    "write": {**_ON_HDFS, "block_mib": 8, "listed": 10_000, "warm_up": {"write native": {"gib": 2.0}}},
    "checkpoint": {
        **_ON_HDFS,
        "budget_mib": 1024,
        "memory_mib": 24_000,
        "read_ahead_kib": 128,
        "loaders": {"torch": "2.15.0", "safetensors": "0.8.0"},
    },
    "image": {
        "tools": {"runc": "1.1.5"},
        "image": _IMAGE,
        "local": {"device": "the machine's own ext4", "read_ahead_kib": 8192},
        "link": {"50": "10.8 ms round trip"},
    },
    "container": {
        "tools": {"containerd": "1.6.20"},
        "image": _IMAGE,
        "link": {"50": "10.8 ms round trip"},
        "peers": ["stargz"],
    },
    "deps": {
        "tools": {"pip": "26.3", "uv": "0.13.9"},
        "installation": {"packages": 64, "wheels_mb": 218.5, "size_mb": 632.1, "files": 18098, "modules": ["numpy"]},
        "link": "10.8 ms round trip",
        "read_ahead_kib": 8192,
    },
    "compile": {"tools": {"torch": "2.15.0", "g++": "12.2.0"}, "layers": 2},
    "startup": {
        "tools": {"containerd": "1.6.20"},
        "job": {
            "name": "standard",
            "framework": "numpy",
            "image_mb": 171.6,
            "layers": 4,
            "packages": 64,
            "checkpoint_mib": 2048,
            "shards": 8,
            "gpu": False,
        },
        "datanodes": 8,
        "rate_mb_s": 40.0,
        "link": "10.8 ms round trip",
    },
    "ceiling": {"tools": {"pyfuse3": "3.4.2"}, "file_mib": 2048, "read_ahead_kib": 16384},
    "namenode": {**_ON_HDFS, "block_mib": 64, "files": 50, "small_kb": 20},
    "growth": _ON_HDFS,
}
"""Facts that each benchmark adds to those of the machine."""


def document(bench: str, rows: Sequence[Row], ratios: Sequence[Ratio] = (), note: str = "", date: str = "") -> Document:
    facts = {**_MACHINE, **FACTS[bench], **({"date": date} if date else {})}
    return Document(bench, "0.1.0", facts, [*rows], [*ratios], [note] if note else [])
