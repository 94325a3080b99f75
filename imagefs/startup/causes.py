"""Stragglers of a start and their likely causes, with the figures that point at them, and changes that would help.

docs/startup-report.md tells the rules for stragglers. A cause explains the time waited for it beyond the median, the
share of bytes that came from the store, or an installation that other nodes had not.

The saving of a change is how much earlier the last unit would end: each unit's time outside of barriers is cut by the
change, by no more than the time in which only that stage ran in it, and the slowest unit counts before and after. Time
that the change leaves is taken from units of these starts that show it; else the saving is an upper bound and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.evidence import Evidence
from imagefs.startup.report import Advice, Cause, Start, Straggler
from imagefs.startup.spans import SECOND

__all__ = ["Seen", "advise", "changes", "common_causes", "look", "stragglers"]

_DEVIATIONS = 5 * 1.4826
_LEAST = SECOND
_EXPLAINS = 0.3
_LEAST_SHARE = 0.005  # of the total: less is no advice
_SHOWN = 20  # stragglers of one stage
_NOT_COMPARED = ("rendezvous", "setup", "queue")  # the wait at a barrier is the others' time
_TOUCHES_IMAGE = ("container", "imports", "model", "compile", "first_batch", "first_step")


def stragglers(evidence: Evidence) -> list[Straggler]:
    """The stragglers by stage and excess, then nodes that only seem to be some."""
    t, union = evidence.timeline, evidence.union
    nodes, of_unit = np.unique(t.unit_node, return_inverse=True)
    found: list[Straggler] = []
    for label in np.flatnonzero(union.any(axis=0)):
        stage = t.stages[label]
        if stage in _NOT_COMPARED or len(nodes) < 3:
            continue
        slowest = np.zeros(len(nodes), np.int64)
        np.maximum.at(slowest, of_unit, union[:, label])
        median = float(np.median(slowest))
        deviation = float(np.median(np.abs(slowest - median)))
        threshold = median + max(_DEVIATIONS * deviation, median / 4, _LEAST)
        over = np.flatnonzero(slowest > threshold)
        for node in over[np.argsort(-slowest[over], kind="stable")][:_SHOWN]:
            excess = slowest[node] - median
            unit = int(np.argmax(np.where(of_unit == node, union[:, label], -1)))
            causes = _causes(evidence, unit, int(label), float(excess))
            took, usual, over_by, limit = (
                float(value / SECOND) for value in (slowest[node], median, excess, threshold)
            )
            found.append(Straggler(t.node(unit), stage, took, usual, over_by, limit, apparent=False, causes=causes))
    return [_explained(one, found) for one in found] + _apparent(evidence)


def _causes(evidence: Evidence, unit: int, label: int, excess: float) -> list[Cause]:
    """The causes that explain enough of the excess of this unit in a stage, the likeliest first."""
    t = evidence.timeline
    stage = t.stages[label]
    found: list[Cause] = []

    def add(cause: str, explained: float, text: str, **facts: object) -> None:
        if explained >= _EXPLAINS * excess:
            found.append(Cause(cause, min(explained, excess) / SECOND, text, facts))

    stages = [stage, "image"] if stage in _TOUCHES_IMAGE else [stage]
    for cause in evidence.causes_of_waits():
        waited = evidence.waited(stages, cause)
        median = float(np.median(waited))
        mine = int(waited[unit])
        host, of_host = next(iter(evidence.hosts(cause, unit).items()), ("", 0))
        where = f", {of_host / SECOND:.1f} s of it for {host}" if host else ""
        others = int(np.count_nonzero(evidence.waited([], cause, host))) - 1 if host and mine else 0
        also = f"; {others} other units waited for it too" if others > 0 else ""
        text = f"waited {mine / SECOND:.1f} s ({cause}{where}), the median {median / SECOND:.1f} s{also}"
        facts = {"waited_s": mine / SECOND, "median_waited_s": median / SECOND}
        more = {"host": host, "host_s": of_host / SECOND, "other_units": others} if host else {}
        add(cause, mine - median, text, **facts, **more)
    install, usual = int(evidence.install[unit]), float(np.median(evidence.install))
    if stage == "dependencies":
        missed = int(evidence.dependency_misses[unit])
        text = f"installed for {install / SECOND:.1f} s, the median {usual / SECOND:.1f} s; {missed} misses"
        add(
            "dependency miss", install - usual, text, install_s=install / SECOND, median_s=usual / SECOND, misses=missed
        )
    if stage in (*_TOUCHES_IMAGE, "image"):
        waited, misses = evidence.on_demand_wait, evidence.on_demand_misses
        mine, median = int(waited[unit]), float(np.median(waited))
        text = (
            f"{misses[unit]} blocks of the image were fetched on demand, the median {np.median(misses):.0f}; "
            f"readers waited {mine / SECOND:.1f} s, the median {median / SECOND:.1f} s"
        )
        facts = {"misses": int(misses[unit]), "median_misses": float(np.median(misses)), "waited_s": mine / SECOND}
        add("on-demand", mine - median, text, **facts)
    cached, stored = evidence.cache_bytes[:, label], evidence.store_bytes[:, label]
    total = np.maximum(cached + stored, 1)
    share, usual = float(cached[unit] / total[unit]), float(np.median(cached / total))
    if stored[unit] > 0 and usual - share >= _EXPLAINS:
        text = f"{share:.0%} of {int(total[unit]) / 1e9:.2f} GB came from the cache, the median {usual:.0%}"
        facts = {"cache_share": share, "median_cache_share": usual, "store_bytes": int(stored[unit])}
        add("cold cache", excess * (usual - share), text, **facts)
    return sorted(found, key=lambda one: -one.seconds)


def _explained(one: Straggler, found: list[Straggler]) -> Straggler:
    """With a cause in any case: the node itself, if it straggles in other stages without one as well."""
    if one.causes:
        return one
    bare = sorted({other.stage for other in found if other.node == one.node and not other.causes})
    times = f"the stage took {one.seconds:.1f} s, the median is {one.median_s:.1f} s"
    if len(bare) > 1:
        text = f"{', '.join(bare)} are slow on this node; no wait, miss or cold cache explains it"
        return one._replace(causes=[Cause("slow node", one.excess_s, text, {"stages": bare})])
    return one._replace(causes=[Cause("unknown", 0.0, f"{times}; no wait, miss or cold cache explains it", {})])


def _apparent(evidence: Evidence) -> list[Straggler]:
    """Nodes whose wall clocks are off by more than a second, and by more than three times the bound."""
    found = []
    for clock in evidence.timeline.clocks:
        if clock.bound_s is None or abs(clock.skew_s) <= max(1.0, 3 * clock.bound_s):
            continue
        way = "ahead" if clock.skew_s > 0 else "behind"
        text = f"its wall clock is {abs(clock.skew_s):.1f} s {way} (within {clock.bound_s:.3f} s); no time was lost"
        facts = {"skew_s": clock.skew_s, "bound_s": clock.bound_s, "barriers": clock.barriers}
        cause = Cause("clock", 0.0, text, facts)
        late = abs(clock.skew_s)
        found += [Straggler(node, "", late, 0.0, late, 1.0, apparent=True, causes=[cause]) for node in clock.nodes]
    return found


def common_causes(evidence: Evidence) -> list[Cause]:
    """Causes of waits that cost the mean unit at least a second or 2% of the start, the largest first.

    A host is named if at least half of the waiting for hosts is for it.
    """
    t = evidence.timeline
    found = []
    total = float(t.end.max(initial=0))
    for cause in evidence.causes_of_waits():
        waited = evidence.waited([], cause)
        mean = float(waited.mean())
        if mean < min(SECOND, 0.02 * total):
            continue
        hosts = evidence.hosts(cause)
        facts: dict[str, object] = {"mean_s": mean / SECOND, "max_s": float(waited.max()) / SECOND}
        text = f"units waited {mean / SECOND:.1f} s in the mean, {waited.max() / SECOND:.1f} s at most"
        host, longest = next(iter(hosts.items()), ("", 0))
        everything = sum(hosts.values())
        if host and longest >= everything / 2:
            on = evidence.waited([], cause, host)
            nodes = len(np.unique(t.unit_node[on > 0]))
            facts |= {"host": host, "host_share": longest / everything, "nodes": nodes}
            text += f"; {longest / everything:.0%} of it for {host}, on {nodes} nodes"
        found.append(Cause(cause, mean / SECOND, text, facts))
    return sorted(found, key=lambda one: -one.seconds)


class Seen(NamedTuple):
    """The evidence of a start about the time that remains after a change, in nanoseconds (per byte); nan for none."""

    mount: float
    attach: float
    cached_byte: float
    compiled: float


class Change(NamedTuple):
    action: str
    stage: str
    saving_s: float
    at_most: bool
    basis: str


def look(starts: Sequence[Evidence]) -> Seen:
    """The medians over the units of all starts that show such a time; of compiling the time of the fastest units."""

    def shown(times: Callable[[Evidence], NDArray[Any]], share: float = 0.5) -> float:
        every = np.concatenate([times(one) for one in starts])
        every = every[every > 0]
        return float(np.quantile(every, share)) if len(every) else float("nan")

    def rate(one: Evidence) -> NDArray[Any]:
        """Nanoseconds a byte of checkpoints that came from the cache, but for a tenth."""
        label = one.timeline.label("checkpoint")
        warm = one.cache_bytes[:, label] > 9 * one.store_bytes[:, label]
        rates: NDArray[Any] = one.union[warm, label] / one.cache_bytes[warm, label]
        return rates

    return Seen(
        shown(lambda one: one.mount), shown(lambda one: one.named("image", "attach")), shown(rate),
        shown(lambda one: one.union[:, one.timeline.label("compile")], 0.05),
    )  # fmt: skip


def changes(evidence: Evidence, seen: Seen, start: Start) -> Iterator[Change]:
    """The changes that would help one start. seen: of all starts."""
    t, alone = evidence.timeline, evidence.alone
    dependencies, image, checkpoint, compile_, barrier = (
        evidence.union[:, t.label(stage)] for stage in ("dependencies", "image", "checkpoint", "compile", "rendezvous")
    )

    def change(action: str, stage: str, time: NDArray[Any], basis: str, *, most: bool = False) -> Change:
        """The change by which each unit saves this time of a stage, "" for any stage: the start is so much shorter."""
        own = t.end - barrier
        limit = alone[:, t.label(stage)] if stage else own
        saving = float(own.max() - (own - np.clip(time, 0, np.minimum(limit, own))).max()) / SECOND
        return Change(action, stage, saving, most, basis)

    def replaced(action: str, stage: str, time: NDArray[Any], remains: float, words: tuple[str, str, str]) -> Change:
        """The change that leaves so much of this time; nan where that is not known. words: what takes the time, and
        what is told of the rest, with or without a figure."""
        what, shown, unknown = words
        known = not np.isnan(remains)
        rest = shown.format(remains / SECOND) if known else f"no {unknown} in these data shows the rest"
        basis = f"{what} takes {time.max() / SECOND:.1f} s on the slowest unit; {rest}"
        return change(action, stage, time - (remains if known else 0.0), basis, most=not known)

    install = evidence.install + evidence.waited(["dependencies"], "lease")
    bare = ~(evidence.mount + install > 0)  # programs other than imagefs show one span of another name
    install = np.where(bare, dependencies, install)
    if install.any():
        words = ("installation", "a mount of {:.1f} s remains", "mount")
        yield replaced("dependency snapshots (imagefs run --deps)", "dependencies", install, seen.mount, words)
    pulled = np.where(evidence.named("image", "attach") > 0, 0, image)
    if pulled.any():
        words = ("the image", "an attach takes {:.1f} s", "lazy image")
        yield replaced("lazy image (imagefs build, then run)", "image", pulled, seen.attach, words)
    if (waited := evidence.on_demand_wait).any():
        basis = f"readers waited up to {waited.max() / SECOND:.1f} s for blocks fetched on demand"
        action = "record and replay of the image (imagefs trace, optimize)"
        yield change(action, "", waited, basis, most=True)._replace(stage="image")
    cached, stored = (table[:, t.label("checkpoint")] for table in (evidence.cache_bytes, evidence.store_bytes))
    if stored.any() and not np.isnan(seen.cached_byte):
        basis = f"units that read from their cache got {1 / seen.cached_byte:.2f} GB/s"
        time = checkpoint - (cached + stored) * seen.cached_byte
        yield change("checkpoint cache (stripefs --cache)", "checkpoint", time, basis)
    cold = (checkpoint > 0) & (evidence.warmings == 0)
    if cold.any():
        first, begun = t.first(t.stage == t.label("checkpoint")), t.first(t.stage != t.label("queue"))
        before = np.where(cold, first - begun, 0)
        basis = f"{np.median(before) / SECOND:.1f} s of other stages run before it, if they leave the link free"
        action = "checkpoint warmed while the image starts (stripefs warm)"
        yield change(action, "checkpoint", before, basis, most=True)
    for host, _ in list(evidence.hosts("datanode").items())[:1]:
        waited = evidence.waited([], "datanode", host)
        basis = f"units waited up to {waited.max() / SECOND:.1f} s for it"
        yield change(f"DataNode {host} repaired or taken out", "", waited, basis)
    if compile_.any():
        known = seen.compiled < 0.3 * float(compile_.max())
        basis = f"compiling takes up to {compile_.max() / SECOND:.1f} s; no unit shows the rest"
        if known:
            basis = f"the fastest units compile in {seen.compiled / SECOND:.1f} s"
        time = compile_ - (seen.compiled if known else 0.0)
        yield change("start-up caches (compiled kernels)", "compile", time, basis, most=not known)
    if evidence.unused_time.any():
        names = sorted({t.events.word("name", int(row)) for row in evidence.unused})
        listed = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        yield change("imports left out that the start does not use", "imports", evidence.unused_time, listed)
    more: dict[str, float] = defaultdict(float)
    for one in start.stragglers:
        if not one.apparent:
            more[one.node] += one.excess_s
    if more:
        beyond = np.array([more.get(t.node(unit), 0.0) * SECOND for unit in range(len(t.end))])
        nodes = ", ".join(sorted(more)[:3]) + (", …" if len(more) > 3 else "")
        yield change("stragglers replaced", "", beyond, f"their time beyond the median: {nodes}")


def advise(starts: Sequence[Start], found: Sequence[Sequence[Change]]) -> list[Advice]:
    """The changes of all starts together, the largest saving first; saving_s is the mean of starts that they help."""
    total = sum(start.total_s for start in starts) or 1.0
    by_action: dict[str, list[tuple[Start, Change]]] = defaultdict(list)
    for start, some in zip(starts, found, strict=True):
        for change in some:
            if change.saving_s > 0:
                by_action[change.action].append((start, change))
    made = []
    for action, pairs in by_action.items():
        savings = [change.saving_s for _, change in pairs]
        hours = [change.saving_s * start.lost.gpus / 3600 for start, change in pairs if start.lost]
        largest = max((change for _, change in pairs), key=lambda one: one.saving_s)
        if (share := sum(savings) / total) >= _LEAST_SHARE:
            made.append(
                Advice(
                    action, largest.stage, sum(savings) / len(savings), share, any(one.at_most for _, one in pairs),
                    len(pairs), sum(hours) if hours else None, largest.basis,
                )
            )  # fmt: skip
    return sorted(made, key=lambda one: -one.saving_share)
