"""Measurement of `bench checkpoint`, on a cluster of its own.

Order: the cluster comes up without a cap, the checkpoints are saved there by the same programs that are measured, and
reading warms the DataNodes up; then each DataNode is capped and the rounds follow.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

from bench.checkpoint.driver import CheckpointDriver, Runner
from bench.checkpoint.plan import Run, choose, ratios, room, runs, sequence
from bench.harness import BenchError, Say
from bench.harness.cluster import CAPPED, running
from bench.harness.data import GIB, MIB
from bench.harness.environment import disk_read_ahead
from bench.harness.peers import TORCH, try_rclone
from bench.harness.results import Document, summary
from bench.harness.rounds import ClusterOptions, Rounds, Store
from bench.read.driver import ReadDriver, warm_reads
from stripefs.settings import default_budget

__all__ = ["Options", "measure"]

_DISK = Path("/var/tmp")  # on disk wherever /tmp is in memory; the cluster has its data there as well
_LOADERS = ("torch", "safetensors", "runai-model-streamer", "fastsafetensors", "fsspec")


@dataclass(frozen=True, slots=True)
class Options(ClusterOptions):
    """`size` in bytes, 0 for as usual. large: checkpoints that fill a good part of the memory, one round."""

    size: int = 0
    large: bool = False

    @property
    def file_size(self) -> int:
        return self.size or (256 * MIB if self.quick else 8 * GIB if self.large else 2 * GIB)

    @property
    def round_count(self) -> int:
        return self.rounds or (1 if self.large else 2 if self.quick else 3)


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each part. Raises BenchError where nothing can be measured."""
    notes: list[str] = []
    few, size = options.quick or options.large, options.file_size
    rclone = None if few else try_rclone(notes, say)
    chosen = choose(runs(few=few, rclone=rclone is not None), options.cases)
    _need_room(chosen, size)
    with (
        tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=_DISK) as scratch,
        Runner({}) as runner,
        running(options.name, say, keep=options.keep) as cluster,
    ):
        facts = {
            **cluster.facts(size, rclone),
            "loaders": _loaders(),
            "budget_mib": default_budget() // MIB,
            "read_ahead_kib": disk_read_ahead(_DISK),
        }
        done = Rounds.begin("checkpoint", options, facts, summary(ratios()), say, store)
        driver = CheckpointDriver(cluster, size, Path(scratch), runner, rclone)
        cluster.set_rate(0)  # an instance that was running may still be capped
        say("saving the checkpoints that are loaded")
        driver.prepare(chosen)
        done.document.notes += notes + warm_reads(ReadDriver(cluster), [driver.file], say)
        cluster.set_rate(CAPPED)
        for number in range(done.rounds):
            for one in sequence(chosen, number):
                done.take(one.case, one.system, number, partial(driver.measure, one))
            done.keep()
    return done.document


def _need_room(chosen: Sequence[Run], size: int) -> None:
    needed, free = room(chosen) * size + 2 * GIB, shutil.disk_usage(_DISK).free
    if free < needed:
        raise BenchError(f"{_DISK} needs {needed / GIB:.0f} GiB and has {free / GIB:.0f}: make room, or give --size")


def _loaders() -> dict[str, str]:
    """Versions of what loads, as the loading process finds them: its own folder comes first."""
    found: dict[str, str] = {}
    for folder in (TORCH, *map(Path, sys.path)):
        for one in distributions(path=[str(folder)]):
            found.setdefault(one.name, one.version)
    return {name: found[name] for name in _LOADERS if name in found}
