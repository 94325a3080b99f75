"""Changes that would shorten starts, with the saving that follows from their own events.

The saving of a change is how much earlier the last unit would end: each unit's time outside of barriers is cut by the
change, by no more than the time in which only that stage ran in it, and the slowest unit counts before and after. Time
that the change leaves, such as the mount of a snapshot instead of an installation, is taken from units of these starts
that show it; where none does, the saving is an upper bound and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.clock import SECOND
from imagefs.startup.evidence import Evidence
from imagefs.startup.report import Advice, Start

__all__ = ["Seen", "advise", "changes", "look"]

_NAN = float("nan")
_LEAST = 0.005  # a smaller share of the total is no advice


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
    """The medians over the units of all starts that show such a time."""
    mounts, attaches, rates, compiled = [], [], [], []
    for evidence in starts:
        t, union = evidence.timeline, evidence.union
        checkpoint = t.label("checkpoint")
        cached, stored = evidence.cache_bytes[:, checkpoint], evidence.store_bytes[:, checkpoint]
        warm = (cached > 9 * stored) & (union[:, checkpoint] > 0)
        attach = evidence.named("image", "attach")
        compile_ = union[:, t.label("compile")]
        mounts.append(evidence.mount[evidence.mount > 0])
        attaches.append(attach[attach > 0])
        rates.append(union[warm, checkpoint] / cached[warm])
        compiled.append(compile_[compile_ > 0])
    fast = np.concatenate(compiled)
    return Seen(
        _median(mounts), _median(attaches), _median(rates), float(np.quantile(fast, 0.05)) if len(fast) else _NAN
    )


def changes(evidence: Evidence, seen: Seen, start: Start) -> Iterator[Change]:
    """The changes that would help one start. seen: of all starts."""
    t, alone, union = evidence.timeline, evidence.alone, evidence.union

    def saved(stage: str, time: NDArray[Any]) -> float:
        """By how much the start is shorter when each unit saves this time of a stage, "" for any stage."""
        own = t.end - union[:, t.label("rendezvous")]
        limit = alone[:, t.label(stage)] if stage else own
        return float(own.max() - (own - np.clip(time, 0, np.minimum(limit, own))).max()) / SECOND

    def replaced(action: str, stage: str, time: NDArray[Any], remains: float, words: tuple[str, str, str]) -> Change:
        """The change that leaves so much of this time; nan where that is not known. words: what takes the time, and
        what is told of the rest, with or without a figure."""
        what, shown, unknown = words
        known = not np.isnan(remains)
        rest = shown.format(remains / SECOND) if known else f"no {unknown} in these data shows the rest"
        basis = f"{what} takes {time.max() / SECOND:.1f} s on the slowest unit; {rest}"
        return Change(action, stage, saved(stage, time - (remains if known else 0.0)), not known, basis)

    install = evidence.install + evidence.waited(["dependencies"], "lease")
    bare = ~(evidence.mount + install > 0)  # programs other than imagefs show one span of another name
    install = np.where(bare, union[:, t.label("dependencies")], install)
    if install.any():
        words = ("installation", "a mount of {:.1f} s remains", "mount")
        yield replaced("dependency snapshots (imagefs run --deps)", "dependencies", install, seen.mount, words)
    pulled = np.where(evidence.named("image", "attach") > 0, 0, union[:, t.label("image")])
    if pulled.any():
        words = ("the image", "an attach takes {:.1f} s", "lazy image")
        yield replaced("lazy image (imagefs build, then run)", "image", pulled, seen.attach, words)
    if evidence.on_demand_wait.any():
        basis = f"readers waited up to {evidence.on_demand_wait.max() / SECOND:.1f} s for blocks fetched on demand"
        saving = saved("", evidence.on_demand_wait)
        yield Change("record and replay of the image (imagefs trace, optimize)", "image", saving, True, basis)
    checkpoint = t.label("checkpoint")
    size = evidence.cache_bytes[:, checkpoint] + evidence.store_bytes[:, checkpoint]
    if evidence.store_bytes[:, checkpoint].any() and not np.isnan(seen.cached_byte):
        saving = saved("checkpoint", union[:, checkpoint] - size * seen.cached_byte)
        basis = f"units that read from their cache got {1 / seen.cached_byte:.2f} GB/s"
        yield Change("checkpoint cache (stripefs --cache)", "checkpoint", saving, False, basis)
    cold = (union[:, checkpoint] > 0) & (evidence.warmings == 0)
    if cold.any():
        first, begun = t.first(t.stage == checkpoint), t.first(t.stage != t.label("queue"))
        before = np.where(cold, first - begun, 0)
        basis = f"{np.median(before) / SECOND:.1f} s of other stages run before it, if they leave the link free"
        saving = saved("checkpoint", before)
        yield Change("checkpoint warmed while the image starts (stripefs warm)", "checkpoint", saving, True, basis)
    for host, _ in list(evidence.hosts("datanode").items())[:1]:
        waited = evidence.waited([], "datanode", host)
        basis = f"units waited up to {waited.max() / SECOND:.1f} s for it"
        yield Change(f"DataNode {host} repaired or taken out", "", saved("", waited), False, basis)
    fast = union[:, t.label("compile")]
    if fast.any():
        known = seen.compiled < 0.3 * float(fast.max())
        basis = f"compiling takes up to {fast.max() / SECOND:.1f} s; no unit shows the rest"
        if known:
            basis = f"the fastest units compile in {seen.compiled / SECOND:.1f} s"
        saving = saved("compile", fast - (seen.compiled if known else 0.0))
        yield Change("start-up caches (compiled kernels)", "compile", saving, not known, basis)
    if evidence.unused_time.any():
        names = sorted({t.events.word("name", int(row)) for row in evidence.unused})
        listed = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        saving = saved("imports", evidence.unused_time)
        yield Change("imports left out that the start does not use", "imports", saving, False, listed)
    more: dict[str, float] = defaultdict(float)
    for one in start.stragglers:
        if not one.apparent:
            more[one.node] += one.excess_s
    if more:
        beyond = np.array([more.get(t.node(unit), 0.0) * SECOND for unit in range(len(t.end))])
        nodes = ", ".join(sorted(more)[:3]) + (", …" if len(more) > 3 else "")
        yield Change("stragglers replaced", "", saved("", beyond), False, f"their time beyond the median: {nodes}")


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
        if (share := sum(savings) / total) >= _LEAST:
            made.append(
                Advice(
                    action, largest.stage, sum(savings) / len(savings), share, any(one.at_most for _, one in pairs),
                    len(pairs), sum(hours) if hours else None, largest.basis,
                )
            )  # fmt: skip
    return sorted(made, key=lambda one: -one.saving_share)


def _median(parts: Sequence[NDArray[Any]]) -> float:
    values = np.concatenate(parts)
    return float(np.median(values)) if len(values) else _NAN
