"""`bench checkpoint`: runs the plan on a cluster of its own and draws the document from the samples.

Order: the cluster comes up without a cap, the checkpoints are saved there by the same programs that are measured, and
reading warms the DataNodes up; then each DataNode is capped and the rounds follow.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from bench import peers
from bench.checkpoint.lab import CheckpointLab
from bench.checkpoint.plan import Run, choose, ratios, room, runs, sequence
from bench.checkpoint.runner import TORCH, Runner
from bench.cluster import BenchError, Cluster, Say, running
from bench.data import GIB, MIB
from bench.environment import disk_read_ahead, first_touch, machine, packages, version
from bench.lab import Lab
from bench.ratios import sum_up
from bench.results import Document
from bench.rounds import Options, Rounds, how_many
from bench.warm import warm_reads
from stripefs.settings import default_budget

__all__ = ["CheckpointOptions", "measure"]

CAPPED = 40e6  # bytes a second of each DataNode
_DISK = Path("/var/tmp")  # on disk wherever /tmp is in memory; the cluster has its data there as well
_LOADERS = ("torch", "safetensors", "runai-model-streamer", "fastsafetensors", "fsspec")


@dataclass(frozen=True, slots=True)
class CheckpointOptions(Options):
    """`size` in bytes, 0 for as usual. large: checkpoints that fill a good part of the memory, one round."""

    size: int = 0
    large: bool = False

    @property
    def file_size(self) -> int:
        return self.size or (256 * MIB if self.quick else 8 * GIB if self.large else 2 * GIB)

    @property
    def how_often(self) -> int:
        return self.rounds or (1 if self.large else how_many(0, quick=self.quick))


def measure(options: CheckpointOptions, say: Say, store: Callable[[Document], None]) -> Document:
    """Measure. Hands what there is to `store` after each round, and answers the whole.

    Raises BenchError where nothing can be measured; what one system cannot do becomes a note.
    """
    notes: list[str] = []
    few = options.quick or options.large
    rclone = None if few else _rclone(notes, say)
    chosen = choose(runs(few=few, rclone=rclone is not None), options.cases)
    document = Document("checkpoint", version(), {}, notes=notes)
    _need_room(chosen, options.file_size)
    with (
        tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=_DISK) as scratch,
        Runner({}) as runner,
        running(options.name, say, keep=options.keep) as cluster,
    ):
        document.environment = _environment(cluster, options, rclone)
        lab = CheckpointLab(cluster, options.file_size, Path(scratch), runner, rclone)
        cluster.set_rate(0)  # an instance that was running may still be capped
        say("saving the checkpoints that are loaded")
        lab.prepare(chosen)
        notes += warm_reads(Lab(cluster), lab.file, say)
        cluster.set_rate(CAPPED)
        done = Rounds(rounds=options.how_often, say=say, notes=notes)
        for number in range(options.how_often):
            for one in sequence(chosen, number):
                done.take(one.case, one.system, number, partial(lab.measure, one))
            document.rows = done.samples.rows()
            document.ratios = sum_up(done.samples, ratios())
            store(document)
    return document


def _need_room(chosen: Sequence[Run], size: int) -> None:
    needed, free = room(chosen) * size + 2 * GIB, shutil.disk_usage(_DISK).free
    if free < needed:
        raise BenchError(f"{_DISK} needs {needed / GIB:.0f} GiB and has {free / GIB:.0f}: make room, or give --size")


def _rclone(notes: list[str], say: Say) -> Path | None:
    """rclone's binary; runs that keep only what the targets need do without."""
    try:
        return peers.build_rclone(say)
    except BenchError as error:
        notes.append(str(error))
        return None


def _environment(cluster: Cluster, options: CheckpointOptions, rclone: Path | None) -> dict[str, Any]:
    """Facts as JSON values; sizes in MiB, rates in MB/s, load as the kernel's average of 15 minutes."""
    return {
        **machine(first_touch()),
        "packages": packages(),
        "loaders": _loaders(),
        "hadoop": "3.4.2",
        "rclone": peers.RCLONE_VERSION if rclone else None,
        "datanodes": len(cluster.datanodes),
        "rate_mb_s": CAPPED / 1e6,
        "file_mib": options.file_size // MIB,
        "budget_mib": default_budget() // MIB,
        "read_ahead_kib": disk_read_ahead(_DISK),
        "rounds": options.how_often,
        "quick": options.quick,
    }


def _loaders() -> dict[str, str]:
    """Versions of what loads, as the loading process finds them: its own folder comes first."""
    found: dict[str, str] = {}
    for folder in (TORCH, *map(Path, sys.path)):
        for one in distributions(path=[str(folder)]):
            found.setdefault(one.name, one.version)
    return {name: found[name] for name in _LOADERS if name in found}
