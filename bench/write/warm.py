"""Warming up: fresh JVMs write at less than half and read at three quarters of their speed, for some GiB.

Each way of the data is taken again and again until it has stopped getting faster: two runs in a row, since machines are
shared, that are not 5% faster than the fastest before. At least 6 GiB and at most 12 a way: WebHDFS writes of fresh
DataNodes stood at 260 MB/s from 2.5 GiB to 3.5, and rose to 370 by 7. The mount has ways of its own, since its many
short files are other work for a NameNode; so has listing, which reads a manifest of some KiB for each file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.data import GIB, MIB, DataFile
from bench.lab import Lab
from bench.write.lab import WriteLab
from bench.write.plan import BLOCK, STREAMS

__all__ = ["Warmed", "facts", "since_gain", "warm", "warm_up"]

_GAIN = 0.05
_SLOWER = 2  # runs in a row
_LEAST, _MOST = 6 * GIB, 12 * GIB  # bytes of one way
_SIZE = 512 * MIB  # bytes of one run, so that starting its client weighs little
_READERS = 32  # threads
_LISTINGS = (3, 12)  # at least, at most


@dataclass(frozen=True, slots=True)
class Warmed:
    """The rates of the runs of one way, in MB/s; whether they had stopped rising; how many bytes a run has."""

    rates: Sequence[float]
    steady: bool
    size: int

    @property
    def gib(self) -> float:
        return len(self.rates) * self.size / GIB


@dataclass(frozen=True, slots=True)
class _Way:
    """`run` moves `size` bytes and answers MB/s; `least` and `most` bytes are moved by all runs."""

    size: int
    run: Callable[[], float]
    least: int = _LEAST
    most: int = _MOST


def warm_up(lab: WriteLab, say: Callable[[str], None]) -> dict[str, Warmed]:
    """Warm all DataNodes, which should have no cap: behind one, those that still compile are as fast as any others."""
    file = DataFile("raw/warm-up", _SIZE, BLOCK)
    reader = Lab(lab.cluster)
    manifests = lab.manifests()
    ways = {
        "write native": _Way(_SIZE, lambda: lab.raw("native", STREAMS[0], 1, _SIZE)["throughput"]),
        "write webhdfs": _Way(_SIZE, lambda: lab.raw("placed", STREAMS[0], 1, _SIZE)["throughput"]),
        "write stripefs": _Way(lab.size, lambda: lab.through("striped", 1)["throughput"]),
        "read native": _Way(_SIZE, lambda: reader.client(file, "native", _READERS)["throughput"]),
        "read webhdfs": _Way(_SIZE, lambda: reader.client(file, "webhdfs", _READERS)["throughput"]),
        "read stripefs": _Way(lab.size, lambda: lab.read_back("striped", _SIZE)["throughput"]),
        "list stripefs": _Way(
            manifests,
            lambda: manifests / 1e6 / lab.listing("striped")["time"],
            *(count * manifests for count in _LISTINGS),
        ),
    }
    lab.cluster.write([file], say)
    found = {}
    for name, way in ways.items():
        found[name] = warm(way.run, way.size, way.least, way.most)
        shown = ", ".join(f"{rate:.0f}" for rate in found[name].rates)
        say(f"warm-up, {name}: {shown} MB/s{'' if found[name].steady else ', rising still'}")
    return found


def warm(run: Callable[[], float], size: int, least: int = _LEAST, most: int = _MOST) -> Warmed:
    """Call `run`, which moves `size` bytes and answers MB/s, until it is steady after `least` bytes or after `most`."""
    rates: list[float] = []
    while (len(rates) + 1) * size <= most:
        rates.append(run())
        if len(rates) * size >= least and since_gain(rates) >= _SLOWER:
            return Warmed(rates, steady=True, size=size)
    return Warmed(rates, steady=False, size=size)


def since_gain(rates: Sequence[float]) -> int:
    """How many runs have gone by since one was faster by a twentieth than all before it."""
    best, since = 0.0, -1
    for rate in rates:
        since = 0 if rate >= (1 + _GAIN) * best else since + 1
        best = max(best, rate)
    return max(0, since)


def facts(found: Mapping[str, Warmed]) -> dict[str, dict[str, object]]:
    """What was done, as JSON values."""
    return {
        way: {"mb_s": [round(rate) for rate in one.rates], "gib": one.gib, "steady": one.steady}
        for way, one in found.items()
    }
