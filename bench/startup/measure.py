"""`bench startup`: sets up a fleet's surroundings, has the job started for the first times, then measures in rounds.

Each round takes all systems, beginning one system further on; a fresh start by all techniques is followed by one on the
same node, whose page cache is emptied. Then nodes in namespaces of their own start the job at the same time. A system
that fails becomes a note, and the others go on.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

from bench import events, startup_report
from bench.cluster import Say
from bench.environment import first_touch, packages, version
from bench.environment import machine as this_machine
from bench.image import lazy
from bench.image.measure import WORK as IMAGES
from bench.programs import output
from bench.ratios import sum_up
from bench.results import Document, Key
from bench.rounds import Rounds, in_turn
from bench.startup.accelerator import Accelerator, accelerator
from bench.startup.fleet import TAG, Fleet, fleet
from bench.startup.network import namespaces
from bench.startup.plan import (
    CASE,
    DATANODE_RATE,
    EVENTS,
    FLEET,
    NODES,
    RATE,
    REPORT,
    SIZES,
    STAGES,
    SYSTEMS,
    Size,
    System,
    chosen,
    ratios,
)
from bench.startup.systems import Machine, machine, prepare, tidy
from bench.tools import cold, compile_programs, locked, remove_mounts, remove_tree

__all__ = ["IMAGES", "WORK", "Options", "measure"]

WORK = Path("~/.cache/bootseer/bench-startup").expanduser()


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` 0 means 1 when quick, else 3; `only` empty means all systems and the nodes that start together."""

    quick: bool = False
    large: bool = False
    gpu: bool = False
    only: tuple[str, ...] = ()
    rounds: int = 0
    name: str = "startup"
    keep: bool = False
    work: Path = WORK
    images: Path = IMAGES
    mirror: str = ""

    @property
    def size(self) -> Size:
        return SIZES["quick" if self.quick else "large" if self.large else "standard"]

    @property
    def systems(self) -> list[System]:
        only = tuple(name for name in self.only if name != FLEET)
        return [] if self.only and not only else chosen(only)


@dataclass(slots=True, kw_only=True)
class _Session(Rounds):
    options: Options
    fleet: Fleet


def measure(options: Options, say: Say, store: Callable[[Document], None]) -> Document:
    """Measure. Hands what there is to `store` after each round, and answers the whole.

    Raises BenchError where nothing can be measured.
    """
    given = accelerator() if options.gpu else Accelerator()
    size, work = options.size, options.work
    with locked(work), ExitStack() as stack:
        _tidy(work)
        compile_programs()
        stack.callback(_tidy, work)
        made = stack.enter_context(
            fleet(
                work,
                options.images,
                size,
                f"{options.name}-{size.name}",
                say,
                mirror=options.mirror,
                keep=options.keep,
                accelerator=given,
            )
        )
        rounds = options.rounds or (1 if options.quick else 3)
        session = _Session(rounds=rounds, say=say, options=options, fleet=made)
        document = Document("startup", version(), _environment(session), notes=session.notes)
        prepare(made, hosts=any(system.name == "dependencies" for system in options.systems))

        def keep() -> None:
            document.rows = session.samples.rows()
            document.ratios = sum_up(session.samples, ratios())
            document.environment["model"] = _model(session)
            document.environment["load_15min"] = round(os.getloadavg()[2], 2)
            store(document)

        made.link.set_rate(RATE)
        made.cluster.set_rate(DATANODE_RATE)
        for number in range(rounds):
            _round(session, number)
            keep()
        if not options.only and not options.quick:
            for part in (_events, _report):
                session.attempt(part.__name__.strip("_"), part)
                keep()
    return document


def _round(session: _Session, number: int) -> None:
    fresh = [system for system in session.options.systems if not system.again]
    for system in in_turn(fresh, number):
        session.attempt(system.name, _system, system, number)
    if not session.options.only or FLEET in session.options.only:
        session.attempt(FLEET, _together, number)
    _sum_up_techniques(session, number)


def _system(session: _Session, system: System, number: int) -> None:
    """On a node that has nothing, and there again for the systems that are measured so."""
    again = SYSTEMS.get(f"{system.name}:again")
    with machine(session.fleet, system, session.fleet.work / "node") as made:
        for one in (system, *([again] if again in session.options.systems else [])):
            cold()
            session.take(CASE, one.name, number, partial(_started, made, f"{one.name}-{number}"))


def _started(made: Machine, run: str) -> dict[str, float]:
    return made.start(run)[1]


def _together(session: _Session, number: int) -> None:
    """By all techniques on nodes that have nothing, at the same time."""
    here = session.fleet
    with ExitStack() as stack:
        names = stack.enter_context(namespaces(NODES, here.cluster, RATE))
        nodes = [stack.enter_context(machine(here, SYSTEMS["all"], here.work / name, name)) for name in names]
        cold()
        together = Barrier(len(nodes))

        def start(node: Machine) -> float:
            together.wait()
            return node.start(f"{FLEET}-{number}")[0].seconds

        with ThreadPoolExecutor(len(nodes)) as pool:
            times = list(pool.map(start, nodes))
    values = {"slowest": max(times), "median": statistics.median(times)}
    session.take(FLEET, "all", number, lambda: values)


def _sum_up_techniques(session: _Session, number: int) -> None:
    """The stages of three starts that have one technique each, one after the other."""
    parts = [session.samples.get(key) for key in [Key(CASE, stage, f"{stage}_stage") for stage in STAGES]]
    if all(number in part for part in parts):
        total = sum(part[number] for part in parts)
        session.samples.add(CASE, "techniques", number, {"time": total})


def _events(session: _Session) -> None:
    """Time a job without events, with its own, and seen from outside."""
    session.say("timing a job with and without events")
    cost = events.measure(session.options.work, session.rounds + 2)
    for way, seconds in cost.wall.items():
        session.samples.add(EVENTS, way, 0, {"time": seconds, "cpu": cost.processor[way]})


def _report(session: _Session) -> None:
    """The report on a start of 5,000 nodes, beside parsing its events alone."""
    session.say("timing the report on 5,000 nodes")
    with tempfile.TemporaryDirectory(dir=session.options.work) as folder:
        found = startup_report.measure(Path(folder), rounds=session.rounds)
    for number, (report, parse) in enumerate(zip(found.report_seconds, found.parse_seconds, strict=True)):
        session.samples.add(REPORT, "report", number, {"time": report})
        session.samples.add(REPORT, "json_parse", number, {"time": parse})


def _model(session: _Session) -> dict[str, dict[str, dict[str, float]]]:
    """The input of the model of `bench fleet`, by system and stage: bytes, and the seconds that these do not account
    for at the rates of this benchmark. Empty before both systems were measured."""
    here, found = session.fleet, {}
    for system in ("today", "all"):
        figures = {
            metric: statistics.median(values.values())
            for metric in ("moved", *(f"{stage}_stage" for stage in STAGES))
            if (values := session.samples.get(Key(CASE, system, metric)))
        }
        if len(figures) <= len(STAGES):
            return {}
        image = here.image.compressed if system == "today" else lazy.published(here.store, TAG).ahead
        sizes = (image, max(figures["moved"] * 1e6 - image, 0.0), sum(file.size for file in here.size.files))
        disks = DATANODE_RATE if system == "today" else DATANODE_RATE * here.size.datanodes
        found[system] = {
            stage: {"bytes": size, "fixed": max(figures[f"{stage}_stage"] - size / rate, 0.0)}
            for stage, size, rate in zip(STAGES, sizes, (RATE, RATE, disks), strict=True)
        }
    return found


def _environment(session: _Session) -> dict[str, Any]:
    """Facts as JSON values."""
    here, size = session.fleet, session.fleet.size
    return {
        **this_machine(first_touch()),
        "packages": packages(),
        "tools": {
            "containerd": output("containerd", "--version").split()[2],
            "runc": output("runc", "--version").splitlines()[0].split()[-1],
            "skopeo": output("skopeo", "--version").split()[-1],
            "hadoop": "3.4.2",
        },
        "job": {
            "name": size.name,
            "framework": size.framework,
            "image_mb": round(here.image.compressed / 1e6, 1),
            "layers": here.image.layers,
            "packages": len(here.pins),
            "checkpoint_mib": sum(file.size for file in size.files) >> 20,
            "shards": size.shards,
            "gpu": session.options.gpu,
        },
        "datanodes": size.datanodes,
        "rate_mb_s": DATANODE_RATE / 1e6,
        "link": str(here.link.measure(RATE)),
        "nodes": NODES,
        "rounds": session.rounds,
        "quick": session.options.quick,
    }


def _tidy(work: Path) -> None:
    """Take away what a benchmark leaves when it is killed, or fails in the wrong place."""
    for folder in (work / "first", work / "node", *work.glob("bench-node*")):
        tidy(folder)
    remove_mounts(work)
    for name in ("host", "deps", "served", "registry", "python"):
        remove_tree(work / name)
