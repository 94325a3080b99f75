"""The plan of `bench write` as tables: its runs (a case and a system each), its ratios and its report. Pure.

A case is measured in rounds of its own. `read_back` reads what the systems of `write` left in the same round, so that
the two go together. `even_limit` is derived: what one DataNode alone gives, times the DataNodes, by the replication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.harness.data import MIB
from bench.harness.report import Bar, Bars, Facts, Report, hdfs, machine
from bench.harness.results import Document, Key, RatioPlan, Samples

__all__ = ["BLOCK", "CASES", "DATANODES", "LAYOUTS", "REPORT", "STREAMS", "Run", "choose", "derive", "ratios", "runs"]

CASES = ("write", "read_back", "write_repl2", "ls")
LAYOUTS = ("striped", "concat", "plain")
DATANODES = 8
BLOCK = 8 * MIB  # bytes: the instance's own
STREAMS = (8, 16)  # raw writers at once: one a DataNode, two a DataNode
_WINDOWS = (64, 512)  # MiB

_CHARTED = {
    "even_limit": "all DataNodes as fast as one alone",
    "stripefs:striped": "stripefs, striped",
    "stripefs:concat": "stripefs, concat",
    "raw_placed": "raw WebHDFS streams, placed",
    "raw_native": "raw hdfs-native streams",
    "stripefs:plain": "stripefs, plain",
    "rclone": "rclone",
    "single_stream": "one hdfs-native stream",
    "one_datanode": "one DataNode alone",
}
"""Those of `write` with words for people, in the order of the chart."""

_QUICK = {
    "write": {"one_datanode", "single_stream", "raw_placed:8", *(f"stripefs:{layout}" for layout in LAYOUTS)},
    "read_back": {"one_datanode", "stripefs:striped:64", "stripefs:concat:512"},
    "write_repl2": {"stripefs:striped", "stripefs:concat"},
    "ls": {"stripefs:striped", "stripefs:plain"},
}
"""The systems that a quick run keeps, which the targets need."""


_COMPARED_TWICE = {
    "striped": ("even_limit", "raw_placed", "raw_native", "single_stream"),
    "concat": ("even_limit", "raw_placed", "single_stream"),
    "plain": ("single_stream",),
}
"""The layouts that are compared at replication 2. No ratio of it has a bound."""


@dataclass(frozen=True, slots=True)
class Run:
    """One system in one case. `kind` says which measurement of the lab it is, the rest what that needs.

    streams: raw writers at once. layout: of the mount. window: the mount's memory for reading, in bytes.
    """

    case: str
    system: str
    kind: str
    replication: int = 1
    streams: int = 1
    layout: str = ""
    window: int = 0


def runs(*, quick: bool, rclone: bool) -> list[Run]:
    """Every run there is, in the order in which the first round makes them."""
    made = [
        *_writing("write", 1),
        *([Run("write", "rclone", "rclone")] if rclone else []),
        Run("read_back", "one_datanode", "read_alone"),
        *(
            Run("read_back", f"stripefs:{layout}:{window}", "read_back", layout=layout, window=window * MIB)
            for window in _WINDOWS
            for layout in LAYOUTS
        ),
        *_writing("write_repl2", 2),
        *(Run("ls", f"stripefs:{layout}", "listing", layout=layout) for layout in ("striped", "plain")),
    ]
    return [run for run in made if not quick or run.system in _QUICK[run.case]]


def _writing(case: str, replication: int) -> list[Run]:
    return [
        # The even limit follows from one figure at any replication.
        *([Run(case, "one_datanode", "write_alone")] if replication == 1 else []),
        *(Run(case, f"stripefs:{layout}", "through", replication, layout=layout) for layout in LAYOUTS),
        *(Run(case, f"raw_placed:{count}", "placed", replication, count) for count in STREAMS),
        *(Run(case, f"raw_native:{count}", "native", replication, count) for count in STREAMS),
        Run(case, "single_stream", "native", replication),
    ]


def choose(made: Sequence[Run], cases: Iterable[str]) -> list[Run]:
    """The runs of `cases`, all where none is named, and those of other cases that these cannot do without."""
    wanted = set(cases) or set(CASES)
    needed = {(run.case, run.system) for run in made if run.case in wanted}
    if "read_back" in wanted:  # it reads what these wrote
        needed |= {("write", f"stripefs:{run.layout}") for run in made if run.kind == "read_back"}
    if wanted & {"write_repl2"}:
        needed.add(("write", "one_datanode"))  # its figure makes the even limit
    return [run for run in made if (run.case, run.system) in needed]


def derive(samples: Samples, number: int) -> None:
    """Add the even limits that follow from what one DataNode gave in round `number`."""
    limits = (("write", "write", 1), ("write_repl2", "write", 2), ("read_back", "read_back", 1))
    for case, source, replication in limits:
        alone = samples.get(Key(source, "one_datanode")).get(number)
        if alone and any(key.case == case for key in samples.series):
            samples.add(case, "even_limit", number, {"throughput": alone * DATANODES / replication})


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    twice = "write_repl2"
    even, back = Key("write", "even_limit"), Key("read_back", "even_limit")
    striped, concat = Key("write", "stripefs:striped"), Key("write", "stripefs:concat")
    single, placed = Key("write", "single_stream"), Key("write", "raw_placed")
    cpu = Key("write", "single_stream", "cpu_per_gb")
    made = [
        RatioPlan("striped_write_vs_even_limit", striped, even, 0.75, at_least=True),
        RatioPlan("concat_write_vs_even_limit", concat, even, 0.7, at_least=True),
        RatioPlan("striped_write_vs_raw_placed", striped, placed, 0.9, at_least=True),
        RatioPlan("striped_write_vs_single_stream", striped, single, 4.5, at_least=True),
        RatioPlan("striped_read_small_window_vs_even_limit", _read("striped", 64), back, 0.85, at_least=True),
        RatioPlan("concat_read_vs_even_limit", _read("concat", 512), back, 0.8, at_least=True),
        RatioPlan("concat_join_share", Key("write", "stripefs:concat", "close_share"), None, 0.02),
        RatioPlan("write_cpu_per_gb_vs_single_stream", Key("write", "stripefs:striped", "cpu_per_gb"), cpu, 1.3),
        RatioPlan("ls_striped_vs_plain", _list("striped", "time"), _list("plain", "time"), 15.0),
        RatioPlan("ls_striped_again_vs_plain", _list("striped", "again_time"), _list("plain", "again_time"), 1.2),
    ]
    for layout in ("concat", "plain"):
        own = Key("write", f"stripefs:{layout}", "cpu_per_gb")
        made.append(RatioPlan(f"write_cpu_per_gb_vs_single_stream_{layout}", own, cpu))
    made += [
        RatioPlan("concat_write_vs_raw_placed", concat, placed),
        RatioPlan("concat_write_vs_single_stream", concat, single),
        RatioPlan("plain_write_vs_single_stream", Key("write", "stripefs:plain"), single),
        RatioPlan("striped_write_vs_raw_native", striped, Key("write", "raw_native")),
        RatioPlan("striped_write_vs_rclone", striped, Key("write", "rclone")),
        RatioPlan("striped_read_vs_even_limit", _read("striped", 512), back),
        RatioPlan("concat_read_small_window_vs_even_limit", _read("concat", 64), back),
    ]
    return made + [
        RatioPlan(f"{layout}_write_vs_{other}_repl2", Key(twice, f"stripefs:{layout}"), Key(twice, other))
        for layout, others in _COMPARED_TWICE.items()
        for other in others
    ]


def _read(layout: str, window: int) -> Key:
    return Key("read_back", f"stripefs:{layout}:{window}")


def _list(layout: str, metric: str) -> Key:
    return Key("ls", f"stripefs:{layout}", metric)


def _head(facts: Facts) -> str:
    return (
        f"{facts['rounds']} rounds; {facts['datanodes']} DataNodes behind {facts['rate_mb_s']:g} MB/s each; "
        f"files of {facts['file_mib']} MiB in blocks of {facts['block_mib']} MiB; {facts['listed']} files listed; "
        f"warmed up with {sum(way['gib'] for way in facts['warm_up'].values()):g} GiB; {machine(facts, hdfs(facts))}"
    )


def _chart(document: Document) -> Bars:
    rows = {name: document.row("write", name) for name in _CHARTED}
    facts = document.environment
    return Bars(
        [Bar(_CHARTED[name], row, ours=name.startswith("stripefs")) for name, row in rows.items() if row],
        of="writes",
        title=f"Writing {facts['file_mib']} MiB to {facts['datanodes']} DataNodes of {facts['rate_mb_s']:g} MB/s each, "
        "replication 1",
        scale="MB/s from open to the end of close: median with lowest and highest round",
        digits=0,
        width=7.5,
        height=0.45,
    )


REPORT = Report(
    ratios=ratios(),
    columns=(
        "throughput",
        "time",
        "again_time",
        "sync_time",
        "close_time",
        "cpu_per_gb",
        "datanode_cpu_per_gb",
        "peak_pss",
    ),
    cases=CASES,
    spread="",
    head=_head,
    chart=_chart,
)
