"""`bench fleet`: plays small fleets, sets the model beside them, and simulates large ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.cluster import Say
from bench.environment import first_touch, machine, version
from bench.fleet import check
from bench.fleet.model import simulate
from bench.fleet.plan import CHECKED, COUNTS, FLEETS, Scenario, checked, fleet, ratios, ways
from bench.link import linked
from bench.ratios import sum_up
from bench.results import Document, load
from bench.rounds import Rounds, how_many
from bench.tools import compile_programs, locked

__all__ = ["WORK", "Options", "measure"]

WORK = Path("~/.cache/bootseer/bench-fleet").expanduser()


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` 0 means 2 when quick, else 3. startup: the document of `bench startup` that the model is fed with; None
    plays and checks only."""

    quick: bool = False
    rounds: int = 0
    work: Path = WORK
    startup: Path | None = None
    scenario: Scenario = field(default_factory=Scenario)

    @property
    def files(self) -> int:
        """MiB of the image that small fleets start."""
        return 24 if self.quick else 96


def measure(options: Options, say: Say, store: Callable[[Document], None]) -> Document:
    """Measure and simulate. Hands what there is to `store` after each part, and answers the whole.

    Raises BenchError where nothing can be measured, ValueError for a document that the model cannot be fed with.
    """
    fed = ways(load(options.startup).environment.get("model", {})) if options.startup else {}
    rounds = Rounds(rounds=how_many(options.rounds, quick=options.quick), say=say)
    document = Document("fleet", version(), machine(first_touch()), notes=rounds.notes)
    document.environment |= {
        "rounds": rounds.rounds,
        "scenario": asdict(options.scenario),
        "fed_by": options.startup.name if options.startup else "",
    }

    def keep() -> None:
        document.rows = rounds.samples.rows()
        document.ratios = sum_up(rounds.samples, ratios())
        document.environment["load_15min"] = round(os.getloadavg()[2], 2)
        store(document)

    with locked(options.work), ExitStack() as stack:
        compile_programs()
        link = stack.enter_context(linked(options.work, options.work / "stores"))
        say("making the image")
        image = check.make_image(options.work, link.folder, options.files)
        stages = check.calibrate(options.work, link, image)
        for number in range(rounds.rounds):
            for count in (1, 2) if options.quick else COUNTS:
                for way in CHECKED:

                    def played(way: str = way, count: int = count) -> dict[str, float]:
                        found = check.play(options.work, link, image, way, count)
                        modelled = check.predicted(stages[way], count)
                        return {
                            "time": found.slowest,
                            "predicted": modelled,
                            "error": abs(modelled / found.slowest - 1),
                            "cpu": found.cpu,
                        }

                    rounds.take(checked(count), way, number, played)
            keep()
    for count in FLEETS[:4] if options.quick else FLEETS:
        for system, parts in fed.items():
            world = options.scenario.world(count, mirrors=system.endswith(":mirrors"))
            result = simulate(parts, count, world, seed=count)
            rounds.samples.add(fleet(count), system, 0, {"time": result.slowest, "median_time": result.median})
        say(f"simulated {count} nodes")
    keep()
    return document
