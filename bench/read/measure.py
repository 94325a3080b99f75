"""Measurement of `bench read`, on a cluster of its own.

Order: the cluster comes up without a cap, the files are written, the uncapped group runs; then each DataNode is capped
and the other groups run. Before that come warm-up reads, over both of the DataNodes' data paths, until two in a row
differ by less than 3%, because fresh JVMs give half.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import BenchError, Say, peers
from bench.harness.cluster import running
from bench.harness.data import GIB, MIB
from bench.harness.results import Document, Key, Ratio, Samples, spread, sum_up
from bench.harness.rounds import ClusterOptions as Options
from bench.harness.rounds import Rounds, Store, in_turn
from bench.read.driver import ReadDriver, warm_reads
from bench.read.model import placement_limit
from bench.read.plan import BEST_OF, CASES, TRANSPORTS, Run, Scale, choose, ratios, runs
from stripefs.settings import default_budget

__all__ = ["Options", "groups", "measure", "summarize"]


@dataclass(slots=True, kw_only=True)
class _Session(Rounds):
    driver: ReadDriver
    scale: Scale


def measure(options: Options, say: Say, store: Store) -> Document:
    """The document, which `store` gets anew after each part. Raises BenchError where nothing can be measured."""
    notes: list[str] = []
    rclone, libhdfs = _peers(options, notes, say)
    size = 256 * MIB if options.quick else 2 * GIB
    scale = Scale(options.quick, size, default_budget(), rclone, bool(libhdfs))
    chosen = choose(runs(scale), options.cases)
    with running(options.name, say, keep=options.keep) as cluster:
        facts = {**cluster.facts(size, rclone), "budget_mib": scale.budget // MIB}
        driver = ReadDriver(cluster, libhdfs)
        session = _Session.begin("read", options, facts, summarize, say, store, driver=driver, scale=scale)
        cluster.set_rate(0)  # an instance that was running may still be capped
        cluster.write(sorted({run.file for run in chosen}, key=lambda file: file.name), say)
        session.document.notes += notes + warm_reads(session.driver, [chosen[0].file], say)
        for rate, phase in itertools.groupby(groups(chosen), key=lambda group: group[0].rate):
            cluster.set_rate(rate)
            for group in phase:
                _measure(session, group)
                session.keep()
    return session.document


def _peers(options: Options, notes: list[str], say: Say) -> tuple[Path | None, dict[str, str]]:
    """rclone's binary and libhdfs's environment. A quick run builds nothing and leaves libhdfs out."""
    if options.quick:
        notes.append("libhdfs is left out of quick runs")
        if (rclone := peers.find_rclone()) is None:
            notes.append("rclone is not built: ./scripts/bench build-rclone")
        return rclone, {}
    rclone, libhdfs = peers.try_rclone(notes, say), {}
    try:
        libhdfs = peers.libhdfs_environment()
    except BenchError as error:
        notes.append(str(error))
    return rclone, libhdfs


def groups(chosen: Sequence[Run]) -> list[list[Run]]:
    """Runs of one file at one rate, whose rounds are interleaved."""
    found: dict[tuple[float, str], list[Run]] = {}
    for one in chosen:
        found.setdefault((one.rate, one.file.name), []).append(one)
    return list(found.values())


def _measure(session: _Session, group: Sequence[Run]) -> None:
    for number in range(session.rounds):
        for one in in_turn(group, number):
            if number < one.rounds:
                session.take(one.case, one.system, number, partial(one.measure, session.driver, number))
        _add_limit(session, group, number)


def _add_limit(session: _Session, group: Sequence[Run], number: int) -> None:
    """Add what placement allows at the rate that one DataNode alone had in this round."""
    for one in group:
        alone = session.samples.get(Key(one.case, "one_datanode")).get(number)
        if one.system == "one_datanode" and alone:
            budget = session.scale.tight if one.case == "large_blocks" else session.scale.budget
            limit = placement_limit(session.driver.extents(one.file), alone, budget)
            session.samples.add(one.case, "placement_limit", number, {"throughput": limit})


def summarize(samples: Samples, document: Document) -> None:
    """Set the document's rows and ratios anew; a family is called after its best member."""
    for case in CASES:
        for family in BEST_OF:
            # Those with nothing but a number behind the name: threads or streams.
            pattern = re.compile(rf"{family}:\d+")
            systems = {key.system for key in samples.series if key.case == case and pattern.fullmatch(key.system)}
            samples.call_best(case, sorted(systems), family)
    document.rows, document.ratios = samples.rows(), sum_up(samples, ratios()) + _memory(samples)


def _memory(samples: Samples) -> list[Ratio]:
    """Peak memory less the budget, in MiB: the worst case of `stripefs`, each case, each other transport."""
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
