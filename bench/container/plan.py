"""The plan of `bench container` as tables: systems and cases, ratios with their targets, the report. Pure.

A case is a rate of the link (`start_50`: 50 MB/s), or something that has none. A peer is a system that is measured
where its programs are on PATH.
"""

from __future__ import annotations

from bench.harness.report import Bars, Facts, Report, machine, tools
from bench.harness.results import Document, Key, RatioPlan, time_of
from bench.image.plan import RATES, case, links, starts

__all__ = ["CASES", "OURS", "PEERS", "REPORT", "SYSTEMS", "ratios"]

CASES = ("start_50", "start_20", "warm", "at_once", "prepare", "snapshotter", "daemon")
OURS = ("imagefs", "imagefs:first")
PEERS = ("stargz", "soci", "nydus")

SYSTEMS = {
    "imagefs": "imagefs, with trace",
    "imagefs:first": "imagefs, no trace",
    "stargz": "stargz-snapshotter, optimised image",
    "soci": "SOCI",
    "nydus": "nydus",
    "overlayfs": "overlayfs: pull, unpack, run",
}
"""With words for people."""


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    pulled = _pulled(RATES[0])
    made = [
        _start("start_vs_pull_unpack_50", RATES[0], "imagefs", "overlayfs", 0.25),
        _start("start_vs_pull_unpack_20", RATES[1], "imagefs", "overlayfs", 0.25),
        _start("first_start_vs_pull_unpack_50", RATES[0], "imagefs:first", "overlayfs", 0.8),
        RatioPlan("start_warm_vs_overlayfs_warm", time_of("warm", "imagefs"), time_of("warm", "overlayfs"), 1.1),
        RatioPlan("whole_image_local_vs_pull_unpack", Key(case(RATES[0]), "imagefs", "local"), pulled, 1.0),
        RatioPlan(
            "prepare_latency_vs_overlayfs",
            Key("prepare", "imagefs", "prepared"),
            Key("prepare", "overlayfs", "prepared"),
            3.0,
        ),
        RatioPlan(
            "twenty_pods_at_once_vs_overlayfs", time_of("at_once", "imagefs"), time_of("at_once", "overlayfs"), 1.2
        ),
    ]
    made += [_start(f"start_vs_{peer}", RATES[0], "imagefs", peer, 0.8) for peer in PEERS]
    made += [_start(f"start_vs_{peer}_20", RATES[1], "imagefs", peer) for peer in PEERS]
    made += [RatioPlan(f"warm_vs_{peer}", time_of("warm", "imagefs"), time_of("warm", peer)) for peer in PEERS]
    made += [
        _start("first_start_vs_pull_unpack_20", RATES[1], "imagefs:first", "overlayfs"),
        RatioPlan("whole_image_local_vs_pull_unpack_first", Key(case(RATES[0]), "imagefs:first", "local"), pulled),
        RatioPlan("whole_image_local_vs_pull_unpack_20", Key(case(RATES[1]), "imagefs", "local"), _pulled(RATES[1])),
        RatioPlan("moved_vs_pull", Key(case(RATES[0]), "imagefs", "moved"), Key(case(RATES[0]), "overlayfs", "moved")),
        RatioPlan("cpu_vs_pull_unpack", Key(case(RATES[0]), "imagefs", "cpu"), Key(case(RATES[0]), "overlayfs", "cpu")),
        RatioPlan("snapshotter_idle_mib", Key("snapshotter", "imagefs", "idle_pss"), None),
        RatioPlan("daemon_peak_mib", Key("daemon", "imagefs", "peak_pss"), None),
    ]
    return made


def _pulled(rate: float) -> Key:
    """The pull alone, after which all of an image that is unpacked is local."""
    return Key(case(rate), "overlayfs", "pull")


def _start(name: str, rate: float, system: str, against: str, bound: float = 0.0) -> RatioPlan:
    return RatioPlan(name, time_of(case(rate), system), time_of(case(rate), against), bound)


def _head(facts: Facts) -> str:
    image = facts["image"]
    return (
        f"image {image['name']}: {image['compressed_mb']:g} MB compressed in {image['layers']} layers; "
        f"{facts['rounds']} rounds. Link: {links(facts)}. Peers: {', '.join(facts['peers']) or 'none on PATH'}. "
        f"{machine(facts, tools(facts))}"
    )


def _chart(document: Document) -> Bars:
    return Bars(
        starts(document, SYSTEMS),
        of="starts",
        title=f"containerd, an image of {document.environment['image']['compressed_mb']:g} MB compressed",
        scale="seconds from the pull until its modules are imported: median, lowest and highest round",
    )


REPORT = Report(
    ratios=ratios(),
    columns=("time", "pull", "inside", "local", "moved", "cpu", "prepared", "idle_pss", "peak_pss"),
    cases=CASES,
    systems=list(SYSTEMS),
    head=_head,
    chart=_chart,
)
