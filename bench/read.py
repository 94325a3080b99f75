"""`bench read`: runs the plan on a cluster of its own and draws the document from the samples.

Order: the cluster comes up without a cap, the files are written, the uncapped group runs; then each DataNode is capped
and the other groups run. Before each of the two come warm-up reads, over both of the DataNodes' data paths, until two
in a row differ by less than 3%, because fresh JVMs give half. Each round begins one run further on, so no system always
follows the same other.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import peers
from bench.cluster import BenchError, Say, running
from bench.data import GIB, MIB
from bench.environment import environment, first_touch, version
from bench.lab import Lab
from bench.model import placement_limit
from bench.plan import CASES, RAW, TRANSPORTS, Run, Scale, ratios, runs
from bench.results import Document, Key, Ratio, Samples, quotients, spread
from bench.rounds import Options, Rounds, how_many, in_turn
from bench.warm import warm_reads
from stripefs.settings import default_budget

__all__ = ["choose", "groups", "run", "sum_up"]

_BEST_OF = (RAW, "rclone")


@dataclass(slots=True, kw_only=True)
class _Session(Rounds):
    lab: Lab
    scale: Scale


def run(options: Options, say: Say, store: Callable[[Document], None]) -> Document:
    """Measure. Hands what there is to `store` after each group of runs, and answers the whole.

    Raises BenchError where nothing can be measured; what one system cannot do becomes a note.
    """
    notes: list[str] = []
    rclone, libhdfs = _peers(options, notes, say)
    size = 256 * MIB if options.quick else 2 * GIB
    scale = Scale(options.quick, size, default_budget(), rclone, bool(libhdfs))
    chosen = choose(runs(scale), options.cases)
    rounds = how_many(options.rounds, quick=options.quick)
    document = Document("read", version(), {}, notes=notes)
    with running(options.name, say, keep=options.keep) as cluster:
        touch = first_touch()
        session = _Session(rounds=rounds, say=say, notes=notes, lab=Lab(cluster, libhdfs), scale=scale)
        cluster.set_rate(0)  # an instance that was running may still be capped
        cluster.write(sorted({run.file for run in chosen}, key=lambda file: file.name), say)
        notes += warm_reads(session.lab, chosen[0].file, say)
        for rate, phase in itertools.groupby(groups(chosen), key=lambda group: group[0].rate):
            cluster.set_rate(rate)
            for group in phase:
                _measure(session, group)
                document.environment = environment(cluster, scale, rounds, touch)
                sum_up(session.samples, document)
                store(document)
    return document


def _peers(options: Options, notes: list[str], say: Say) -> tuple[Path | None, dict[str, str]]:
    """rclone's binary and libhdfs's environment. A quick run builds nothing and leaves libhdfs out."""
    rclone, libhdfs = peers.find_rclone(), {}
    if options.quick:
        notes.append("libhdfs is left out of quick runs")
        if rclone is None:
            notes.append("rclone is not built: ./scripts/bench build-rclone")
        return rclone, {}
    try:
        rclone = peers.build_rclone(say)
    except BenchError as error:
        notes.append(str(error))
    try:
        libhdfs = peers.libhdfs_environment()
    except BenchError as error:
        notes.append(str(error))
    return rclone, libhdfs


def choose(all_runs: Sequence[Run], cases: Iterable[str]) -> list[Run]:
    """The runs of `cases`, and those of other cases that their ratios need."""
    wanted = set(cases) or set(CASES)
    keys = {
        (key.case, key.system)
        for plan in ratios()
        if wanted & {plan.upper.case, plan.lower.case}
        for key in (plan.upper, plan.lower)
    }
    return [run for run in all_runs if run.case in wanted or keys & {(run.case, name) for name in _names(run.system)}]


def _names(system: str) -> set[str]:
    """What ratios may call it: by its own name, or as the best of its family."""
    family = _family(system)
    return {system, family} if family in _BEST_OF else {system}


def groups(chosen: Sequence[Run]) -> list[list[Run]]:
    found: dict[tuple[float, str], list[Run]] = {}
    for one in chosen:
        found.setdefault((one.rate, one.file.name), []).append(one)
    return list(found.values())


def _measure(session: _Session, group: Sequence[Run]) -> None:
    for number in range(session.rounds):
        for one in in_turn(group, number):
            if number < one.rounds:
                session.take(one.case, one.system, number, partial(one.measure, session.lab, number))
        _add_limit(session, group, number)


def _add_limit(session: _Session, group: Sequence[Run], number: int) -> None:
    """What placement allows at the rate that one DataNode alone had in this round."""
    for one in group:
        alone = session.samples.get(Key(one.case, "one_datanode")).get(number)
        if one.system == "one_datanode" and alone:
            budget = session.scale.tight if one.case == "large_blocks" else session.scale.budget
            limit = placement_limit(session.lab.extents(one.file), alone, budget)
            session.samples.add(one.case, "placement_limit", number, {"throughput": limit})


def _family(system: str) -> str:
    return system.partition(":")[0]


def sum_up(samples: Samples, document: Document) -> None:
    """Set the document's rows and ratios anew."""
    for case in CASES:
        for family in _BEST_OF:
            # Those with nothing but a number behind the name: threads or streams.
            pattern = re.compile(rf"{family}:\d+")
            systems = {key.system for key in samples.series if key.case == case and pattern.fullmatch(key.system)}
            samples.call(case, samples.best(case, sorted(systems)), family)
    document.rows = samples.rows()
    measured = {plan.name: quotients(samples.get(plan.upper), samples.get(plan.lower)) for plan in ratios()}
    document.ratios = [Ratio(name, *spread(values)) for name, values in measured.items() if values]
    document.ratios += _memory(samples)


def _memory(samples: Samples) -> list[Ratio]:
    """How far memory went past the budget, in MiB: the worst case of `stripefs`, each case, each other transport."""
    series = {key: values for key, values in samples.series.items() if key.metric == "over_budget"}
    named = {"": [key for key in series if key.system == "stripefs"]}
    named |= {f"_{key.case}": [key] for key in named[""]}
    for key in series:
        transport = key.system.removeprefix("stripefs:")
        if transport in TRANSPORTS:
            named.setdefault(f"_{transport}", []).append(key)
    found = []
    for suffix, keys in named.items():
        if keys:
            worst = max(keys, key=lambda key: statistics.median(series[key].values()))
            found.append(Ratio(f"memory_over_budget_mib{suffix}", *spread(list(series[worst].values()))))
    return found
