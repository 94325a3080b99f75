"""Measurement of `bench startup`: sets up a fleet's surroundings, has the job started first, then measures in rounds.

Each round takes all systems, beginning one system further on; a fresh start by all techniques is followed by one on the
same node, whose page cache is emptied. Then nodes in namespaces of their own start the job at the same time. A system
that fails becomes a note, and the others go on.
"""

from __future__ import annotations

import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

from bench.harness import Say
from bench.harness.cluster import HADOOP
from bench.harness.environment import CACHE, cold, packages, remove_mounts, remove_tree, work_folder
from bench.harness.programs import output, tool_version
from bench.harness.results import Document, Key, summary
from bench.harness.rounds import Options as HarnessOptions
from bench.harness.rounds import Rounds, Store, in_turn
from bench.image import runtime
from bench.image.measure import WORK as IMAGES
from bench.read.driver import ReadDriver, warm_reads
from bench.startup import event_cost
from bench.startup.accelerator import Accelerator, accelerator
from bench.startup.fleet import TAG, Fleet, fleet, namespaces
from bench.startup.plan import (
    CASE,
    DATANODE_RATE,
    EVENTS,
    FLEET,
    NODES,
    RATE,
    REPORT_TIME,
    SIZES,
    STAGES,
    SYSTEMS,
    Size,
    System,
    chosen,
    ratios,
)
from bench.startup.synthetic import measure_report
from bench.startup.systems import Machine, machine, prepare, tidy

__all__ = ["IMAGES", "WORK", "Options", "measure"]

WORK = CACHE / "bench-startup"


@dataclass(frozen=True, slots=True)
class Options(HarnessOptions):
    """`rounds` 0 means 1 when quick, else 3; `only` empty means all systems and the nodes that start together."""

    large: bool = False
    gpu: bool = False
    only: tuple[str, ...] = ()
    name: str = "startup"
    keep: bool = False
    work: Path = WORK
    images: Path = IMAGES
    mirror: str = ""

    @property
    def round_count(self) -> int:
        return self.rounds or (1 if self.quick else 3)

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


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each part. Raises BenchError where nothing can be measured."""
    given = accelerator() if options.gpu else Accelerator()
    work, size = options.work, options.size
    with work_folder(work, _tidy) as stack:
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
        session = _Session.begin(
            "startup", options, _facts(options, made), summary(ratios()), say, store, options=options, fleet=made
        )
        prepare(made, hosts=any(system.name == "dependencies" for system in options.systems))
        if not options.quick:
            session.document.notes += warm_reads(ReadDriver(made.cluster), size.files, say)
        made.link.set_rate(RATE)
        made.cluster.set_rate(DATANODE_RATE)
        for number in range(session.rounds):
            _round(session, number)
            _keep(session)
        if not options.only and not options.quick:
            for part in (_events, _report):
                session.attempt(part.__name__.strip("_"), part)
                _keep(session)
    return session.document


def _keep(session: _Session) -> None:
    session.document.environment["model"] = _model(session)
    session.keep()


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
    cost = event_cost.measure(session.options.work, session.rounds + 2)
    for way, seconds in cost.wall.items():
        session.samples.add(EVENTS, way, 0, {"time": seconds, "cpu": cost.processor[way]})


def _report(session: _Session) -> None:
    """The report on a start of 5,000 nodes, beside parsing its events alone."""
    session.say("timing the report on 5,000 nodes")
    with tempfile.TemporaryDirectory(dir=session.options.work) as folder:
        found = measure_report(Path(folder), rounds=session.rounds)
    for number, (report, parse) in enumerate(found):
        session.samples.add(REPORT_TIME, "report", number, {"time": report})
        session.samples.add(REPORT_TIME, "json_parse", number, {"time": parse})


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
        image = here.image.compressed if system == "today" else runtime.published(here.store, TAG).ahead
        sizes = (image, max(figures["moved"] * 1e6 - image, 0.0), sum(file.size for file in here.size.files))
        disks = DATANODE_RATE if system == "today" else DATANODE_RATE * here.size.datanodes
        found[system] = {
            stage: {"bytes": size, "fixed": max(figures[f"{stage}_stage"] - size / rate, 0.0)}
            for stage, size, rate in zip(STAGES, sizes, (RATE, RATE, disks), strict=True)
        }
    return found


def _facts(options: Options, here: Fleet) -> dict[str, Any]:
    """Facts as JSON values."""
    size = here.size
    return {
        "packages": packages(),
        "tools": {
            "containerd": output("containerd", "--version").split()[2],
            "runc": tool_version("runc"),
            "skopeo": tool_version("skopeo"),
            "hadoop": HADOOP,
        },
        "job": {
            "name": size.name,
            "framework": size.framework,
            "image_mb": round(here.image.compressed / 1e6, 1),
            "layers": here.image.layers,
            "packages": len(here.pins),
            "checkpoint_mib": sum(file.size for file in size.files) >> 20,
            "shards": size.shards,
            "gpu": options.gpu,
        },
        "datanodes": size.datanodes,
        "rate_mb_s": DATANODE_RATE / 1e6,
        "link": str(here.link.measure(RATE)),
        "nodes": NODES,
    }


def _tidy(work: Path) -> None:
    """Take away what a benchmark leaves when it is killed, or fails in the wrong place."""
    for folder in (work / "first", work / "node", *work.glob("bench-node*")):
        tidy(folder)
    remove_mounts(work)
    for name in ("host", "deps", "served", "registry", "python"):
        remove_tree(work / name)
