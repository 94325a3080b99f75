"""`bench compile`: starts the job on hosts that have nothing of it, and draws the document from what it says.

Each round publishes anew: a start without caches, the first with them, from which they are published, and the second on
another host. Page caches stay as they are: what is compiled is measured, and not what is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.checkpoint.runner import TORCH
from bench.cluster import BenchError, Say
from bench.compile.job import Job
from bench.compile.report import SYSTEMS, ratios
from bench.environment import first_touch, machine, version
from bench.host import Host
from bench.programs import output
from bench.ratios import sum_up
from bench.results import Document
from bench.rounds import Rounds, how_many
from bench.tools import compile_programs, locked, remove_mounts, remove_tree

__all__ = ["WORK", "Options", "host", "measure"]

WORK = Path("~/.cache/bootseer/bench-compile").expanduser()

_CACHES = ("--startup-cache", "inductor")
_PUBLISHED_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` 0 means 2 when quick, else 3."""

    quick: bool = False
    rounds: int = 0
    work: Path = WORK


def measure(options: Options, say: Say, store: Callable[[Document], None]) -> Document:
    """Measure. Hands what there is to `store` after each round, and answers the whole. Raises BenchError."""
    layers = 2 if options.quick else 8
    rounds = Rounds(rounds=how_many(options.rounds, quick=options.quick), say=say)
    with locked(options.work):
        compile_programs()
        facts = {
            **machine(first_touch()),
            "tools": {"torch": _torch_version(), "g++": output("g++", "-dumpfullversion").strip()},
            "layers": layers,
            "rounds": rounds.rounds,
            "quick": options.quick,
        }
        document = Document("compile", version(), facts, notes=rounds.notes)
        for number in range(rounds.rounds):
            _round(rounds, options.work, layers, number)
            document.rows, document.ratios = rounds.samples.rows(), sum_up(rounds.samples, ratios())
            store(document)
    return document


def _round(rounds: Rounds, work: Path, layers: int, number: int) -> None:
    with _emptied(work / "job") as folder:
        job = Job(folder, layers)
        for system, options in zip(SYSTEMS, ((), _CACHES, _CACHES), strict=True):
            rounds.take("start", system, number, partial(_start, job, work, options))


def _start(job: Job, work: Path, options: Sequence[str]) -> dict[str, float]:
    first = bool(options) and not job.published()
    with host(work / "host") as environment, job.started(environment, options) as told:
        deadline = time.monotonic() + _PUBLISHED_WITHIN
        while first and not job.published():
            if time.monotonic() > deadline:
                raise BenchError(f"the caches were not published within {_PUBLISHED_WITHIN:g} s")
            time.sleep(0.1)
    if bool(options) and not first and told["misses"]:
        raise BenchError(f"{told['misses']} graphs were not found in the caches")
    return {"time": told["time"], "cpu": told["cpu"]}


@contextmanager
def host(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a host that has nothing; its daemon ends with the block."""
    with _emptied(folder):
        for name, mode in (("run", 0o700), ("cache", 0o755)):
            (folder / name).mkdir(mode, parents=True)
        made = Host(folder)
        try:
            yield made.environment
        finally:
            made.stop()
            remove_mounts(folder)


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    remove_mounts(folder)
    remove_tree(folder)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        remove_tree(folder)


def _torch_version() -> str:
    return next(TORCH.glob("torch-*.dist-info")).name.removesuffix(".dist-info").removeprefix("torch-")
