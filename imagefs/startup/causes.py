"""Stragglers of a start and their likely causes, each with the figures that point at it.

A node is a straggler in a stage if its slowest unit exceeds the median of the nodes by five scaled median absolute
deviations, by a quarter of the median, and by a second. A cause is named if it explains at least 30% of the excess: by
the time waited for it beyond the median, the share of bytes that came from the store, or an installation that other
nodes had not. Without such evidence the cause is unknown, or the node itself if several of its stages straggle.
"""

from __future__ import annotations

import numpy as np

from imagefs.startup.clock import SECOND
from imagefs.startup.evidence import Evidence
from imagefs.startup.report import Cause, Straggler

__all__ = ["common_causes", "stragglers"]

_DEVIATIONS = 5 * 1.4826
_LEAST = SECOND
_EXPLAINS = 0.3
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
    for clock in evidence.timeline.alignment.clocks:
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
