"""The plan of `bench image` as tables: systems and cases, ratios with their targets, the report. Pure.

A case is a rate of the link (`start_50`: 50 MB/s), or something that has none. Derived series stand beside measured
ones: `bound` is the time that no start can beat, `transfer` what the bytes of the whole image take on the link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.harness.report import Bar, Bars, Facts, Report, machine, tools
from bench.harness.results import Document, Key, RatioPlan, Samples, time_of

__all__ = ["CASES", "RATES", "REPORT", "SYSTEMS", "Sizes", "case", "derive", "links", "ratios", "starts"]

RATES = (50e6, 20e6)
CASES = ("start_50", "start_20", "warm", "touched", "build", "second_build", "daemon")

SYSTEMS = {
    "bound": "least possible",
    "local": "local ext4, cold",
    "local:unfiltered": "local ext4, without a filter of system calls",
    "imagefs": "imagefs, with trace",
    "imagefs:no_daemon": "imagefs, with trace, daemon not up yet",
    "imagefs:tree": "imagefs, with trace, tree plane",
    "imagefs:lazy": "imagefs, no trace",
    "transfer": "transfer of the image alone",
    "fetch_all": "fetch all, unpack, run",
    "interpreter": "Python alone",
}
"""Those of the cases with a rate, with words for people, fastest expected first."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes: `whole` is the compressed image, `ahead` the compressed hot device with metadata and indexes."""

    whole: int
    ahead: int


def case(rate: float) -> str:
    """The name of a start over a link of so many bytes a second."""
    return f"start_{rate / 1e6:g}"


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    made = [_start("prefetch_vs_bound_50", 50e6, "bound", 1.25), _start("prefetch_vs_bound_20", 20e6, "bound", 1.4)]
    made += [
        _start("prefetch_vs_transfer_50", 50e6, "transfer", 0.4),
        _start("prefetch_vs_lazy_50", 50e6, "imagefs:lazy", 0.4),
        *(_first(rate) for rate in RATES),
        RatioPlan("warm_vs_local_warm", time_of("warm", "imagefs"), time_of("warm", "local"), 1.1),
        RatioPlan("run_prepare_ms", Key("warm", "imagefs", "prepare"), None, 40.0),
        RatioPlan(
            "bytes_prefetch_vs_touched", Key("start_50", "imagefs", "fetched"), Key("touched", "local", "fetched"), 1.3
        ),
        RatioPlan(
            "recall_second_build", Key("second_build", "imagefs:first_start", "recall"), None, 0.9, at_least=True
        ),
        RatioPlan(
            "rebuild_stored_vs_changed",
            Key("second_build", "imagefs", "stored"),
            Key("second_build", "changed_files", "stored"),
            1.5,
        ),
        RatioPlan("build_vs_unpack", time_of("build", "imagefs"), time_of("build", "umoci"), 2.0),
        RatioPlan("daemon_idle_mib", Key("daemon", "imagefs", "idle_pss"), None, 80.0),
        RatioPlan("daemon_serving_over_budget_mib", Key("daemon", "imagefs", "over_budget"), None, 150.0),
        _start("prefetch_vs_lazy_20", 20e6, "imagefs:lazy"),
        RatioPlan("run_prepare_vs_python", Key("warm", "imagefs", "prepare"), Key("warm", "interpreter", "prepare")),
        RatioPlan("warm_inside_vs_local_warm", Key("warm", "imagefs", "inside"), Key("warm", "local", "inside")),
        RatioPlan("warm_vs_local_warm_unfiltered", time_of("warm", "imagefs"), time_of("warm", "local:unfiltered")),
        RatioPlan("warm_vs_local_warm_tree", time_of("warm", "imagefs:tree"), time_of("warm", "local")),
        RatioPlan(
            "moved_prefetch_vs_whole", Key("start_50", "imagefs", "moved"), Key("start_50", "fetch_all", "moved")
        ),
    ]
    for rate in RATES:
        end = f"{rate / 1e6:g}"
        made += [
            _start(f"prefetch_vs_fetch_all_{end}", rate, "fetch_all"),
            _start(f"prefetch_vs_local_{end}", rate, "local"),
            *(
                RatioPlan(
                    f"prefetch_vs_bound_{end}_{how}",
                    time_of(case(rate), f"imagefs:{how}"),
                    time_of(case(rate), "bound"),
                )
                for how in ("no_daemon", "tree")
            ),
        ]
    return made


def derive(samples: Samples, rate: float, number: int, sizes: Sizes) -> None:
    """Add what follows from the sizes and from this round's start on the local disk."""
    local = samples.get(time_of(case(rate), "local")).get(number)
    samples.add(case(rate), "transfer", number, {"time": sizes.whole / rate})
    if local is not None and sizes.ahead:
        samples.add(case(rate), "bound", number, {"time": max(local, sizes.ahead / rate)})


def _start(name: str, rate: float, against: str, bound: float = 0.0) -> RatioPlan:
    return RatioPlan(name, time_of(case(rate), "imagefs"), time_of(case(rate), against), bound)


def _first(rate: float) -> RatioPlan:
    """A start of which nothing is known yet, against fetching the whole image and then starting."""
    name = f"first_start_vs_pull_{rate / 1e6:g}"
    return RatioPlan(name, time_of(case(rate), "imagefs:lazy"), time_of(case(rate), "fetch_all"), 0.8)


def links(facts: Facts) -> str:
    """The links of a document in words, by the rate that was set."""
    return "; ".join(f"{rate} MB/s set: {said}" for rate, said in facts["link"].items())


def starts(document: Document, systems: Mapping[str, str]) -> list[Bar]:
    """The starts over each link by those of `systems` that were measured."""
    found = [(rate, name, document.row(case(rate), name, "time")) for rate in RATES for name in systems]
    return [
        Bar(f"{systems[name]}, {rate / 1e6:g} MB/s", row, ours=name.startswith("imagefs"))
        for rate, name, row in found
        if row
    ]


def _head(facts: Facts) -> str:
    image, local = facts["image"], facts["local"]
    codecs = ", ".join(f"{device} device by {codec}" for device, codec in image.get("codecs", {}).items())
    return (
        f"image {image['name']}: {image['compressed_mb']:g} MB compressed in {image['layers']} layers, "
        f"{image['size_mb']:g} MB in {image['files']} files; {facts['rounds']} rounds. Link: {links(facts)}. "
        f"Local: {local['device']}, read_ahead_kb {local['read_ahead_kib']}. "
        f"{f'Packs: {codecs}. ' if codecs else ''}{machine(facts, tools(facts))}"
    )


def _chart(document: Document) -> Bars:
    image = document.environment["image"]
    return Bars(
        starts(document, {name: label for name, label in SYSTEMS.items() if name != "bound"}),
        of="starts",
        title=f"Starting a container of {image['compressed_mb']:g} MB compressed, {image['size_mb']:g} MB unpacked",
        scale="seconds until its modules are imported: median, lowest and highest round",
    )


REPORT = Report(
    ratios=ratios(),
    columns=(
        "time",
        "inside",
        "prepare",
        "moved",
        "fetched",
        "stored",
        "metadata",
        "recall",
        "precision",
        "idle_pss",
        "peak_pss",
        "over_budget",
    ),
    cases=CASES,
    systems=list(SYSTEMS),
    head=_head,
    chart=_chart,
    variant=lambda facts: str(facts["image"]["name"]),
)
