"""Warms DataNodes up by reading: fresh JVMs give half."""

from __future__ import annotations

from bench.cluster import Say
from bench.data import DataFile
from bench.lab import Lab

__all__ = ["warm_reads"]

_WARM = 0.03
_ROUNDS = 8  # of a machine that others use, two equal rounds may never come
_THREADS = 32


def warm_reads(lab: Lab, file: DataFile, say: Say) -> list[str]:
    """Read `file` over both of the DataNodes' data paths, each until two reads in a row are about equally fast.

    Before any cap is set: behind one, a DataNode that still compiles its code is as fast as one that has. Answers what
    did not become steady, a sentence each.
    """
    notes = []
    for kind in ("native", "webhdfs"):
        last = 0.0
        for _ in range(_ROUNDS):
            rate = lab.client(file, kind, _THREADS)["throughput"]
            say(f"warm-up of {kind}: {rate:.0f} MB/s")
            if abs(rate - last) < _WARM * rate:
                break
            last = rate
        else:
            notes.append(f"{kind}: no two of {_ROUNDS} warm-up reads came within {_WARM:.0%}")
    return notes
