"""Measurement of `bench fleet`: plays small fleets, sets the model beside them, and simulates large ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from bench.fleet import check
from bench.fleet.model import Stage, simulate
from bench.fleet.plan import CHECKED, COUNTS, FLEETS, Scenario, checked, fleet, ratios, ways
from bench.harness import Say
from bench.harness.environment import CACHE, compile_programs, locked
from bench.harness.link import Link, linked
from bench.harness.results import Document, load, summary
from bench.harness.rounds import Options as HarnessOptions
from bench.harness.rounds import Rounds, Store

__all__ = ["WORK", "Options", "measure"]

WORK = CACHE / "bench-fleet"


@dataclass(frozen=True, slots=True)
class Options(HarnessOptions):
    """startup: the document of `bench startup` that the model is fed with; None plays and checks only."""

    work: Path = WORK
    startup: Path | None = None
    scenario: Scenario = field(default_factory=Scenario)

    @property
    def files(self) -> int:
        """MiB of the image that small fleets start."""
        return 24 if self.quick else 96


def measure(options: Options, say: Say, store: Store) -> Document:
    """Measure and simulate. Hands what there is to `store` after each part, and answers the whole.

    Raises BenchError where nothing can be measured, ValueError for a document that the model cannot be fed with.
    """
    fed = ways(load(options.startup).environment.get("model", {})) if options.startup else {}
    facts = {"scenario": asdict(options.scenario), "fed_by": options.startup.name if options.startup else ""}
    rounds = Rounds.begin("fleet", options, facts, summary(ratios()), say, store)
    with locked(options.work), linked(options.work, options.work / "stores") as link:
        compile_programs()
        say("making the image")
        image = check.make_image(options.work, link.folder, options.files)
        stages = check.calibrate(options.work, link, image)
        for number in range(rounds.rounds):
            for count in (1, 2) if options.quick else COUNTS:
                for way in CHECKED:
                    played = partial(_played, options.work, link, image, stages[way], count)
                    rounds.take(checked(count), way, number, played)
            rounds.keep()
    for count in FLEETS[:4] if options.quick else FLEETS:
        for system, parts in fed.items():
            world = options.scenario.world(count, mirrors=system.endswith(":mirrors"))
            result = simulate(parts, count, world, seed=count)
            rounds.samples.add(fleet(count), system, 0, {"time": result.slowest, "median_time": result.median})
        say(f"simulated {count} nodes")
    rounds.keep()
    return rounds.document


def _played(work: Path, link: Link, image: check.Image, stage: Stage, count: int) -> dict[str, float]:
    """A fleet of so many nodes, and what the model says of it."""
    found = check.play(work, link, image, stage.name, count)
    modelled = check.predicted(stage, count)
    error = abs(modelled / found.slowest - 1)
    return {"time": found.slowest, "predicted": modelled, "error": error, "cpu": found.cpu}
