"""The plan of `bench checkpoint` as tables: its runs (a case and a system each), its ratios and its report. Pure.

A system is called after what loads and the way to the file: `torch:mount`, `dcp:fsspec`. Every round goes through all
cases, each one system further on than in the round before, so that what a ratio compares stands close together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bench.harness.report import Bar, Bars, Facts, Report, hdfs, machine
from bench.harness.results import Document, Key, Metric, RatioPlan, needed, time_of
from bench.harness.rounds import in_turn

__all__ = [
    "CASES",
    "CHARTED",
    "RANKS",
    "REPORT",
    "Run",
    "choose",
    "copies",
    "name_of",
    "ratios",
    "room",
    "runs",
    "sequence",
]

CASES = ("save", "first", "cached", "cached_direct", "warmed", "warm_disk", "four")
RANKS = 4

CHARTED = {
    ("first", "sequential:stream"): "one hdfs-native stream",
    ("first", "torch:rclone"): "rclone with its cache, first torch.load",
    ("first", "safetensors:mount"): "stripefs, first load",
    ("cached", "safetensors:mount"): "stripefs, from its cache after a restart",
    ("warmed", "safetensors:mount"): "stripefs, after `stripefs warm`",
    ("cached", "safetensors:local"): "a local file",
}
"""Those of the chart with words for people, slowest expected first."""

_TARGETED = {
    "save": {"safetensors:mount", "torch:fsspec", "dcp:mount"},
    "first": {
        "sequential:mount",
        "sequential:api",
        "sequential:stream",
        "safetensors:mount",
        "dcp:mount",
        "runai:mount",
        "fastsafetensors:mount",
    },
    "cached": {"safetensors:mount", "safetensors:local"},
    "cached_direct": {"direct:mount", "direct:local", "direct:api"},
    "warmed": {"safetensors:mount"},
    "warm_disk": {"stripefs", "copy"},
    "four": {"direct:mount", "fsspec"},
}
"""The systems that a quick run and one with large files keep: those of the targets, and a save of each library."""


@dataclass(frozen=True, slots=True)
class Run:
    """One system in one case. `kind` says which measurement of the driver it is, the rest what that needs.

    format: of `bench.checkpoint.formats`, or what ranks do. way: mount, api, fsspec, local, rclone or stream. cache:
    what the cache on local disk has when loading begins: "" there is none, "empty", "filled", "warm": `stripefs warm`
    has just filled it. rounds: how often it runs at most. bounded: the memory of the mount has the usual limit.
    """

    case: str
    system: str
    kind: str
    format: str = ""
    way: str = "mount"
    cache: str = ""
    rounds: int = 1 << 30
    bounded: bool = False


def runs(*, few: bool, rclone: bool) -> list[Run]:
    """Every run there is, in the order in which the first round makes them. few: only what a quick run keeps."""
    warmed = _run("warmed", "load", "safetensors:mount", "warm")
    made = [*_saves(), *_first(), *_cached(), *_cached_direct(), warmed, *_warm_disk(), *_four()]
    if not rclone:
        made = [run for run in made if run.way != "rclone" and not run.bounded]
    return [run for run in made if not few or run.system in _TARGETED[run.case]]


_BOUNDED = ("mount", "rclone")
_LIBRARIES = ("safetensors", "torch", "torch_mmap", "dcp", "runai", "fastsafetensors")
"""Those that load from a path."""


def _saves() -> list[Run]:
    systems = [
        f"{name}:{way}" for way in ("mount", "api", "fsspec", "local") for name in ("safetensors", "torch", "dcp")
    ]
    systems.remove("dcp:api")  # it knows paths and fsspec
    streamed = Run("save", "sequential:stream", "save_stream", way="stream", rounds=1)
    return [streamed, *(_run("save", "save", system) for system in systems)]


def _first() -> list[Run]:
    direct = ("safetensors:api", "safetensors:fsspec", "torch:api", "torch:fsspec", "dcp:fsspec")
    systems = [f"{name}:mount" for name in _LIBRARIES]
    return [
        Run("first", "sequential:mount", "sequential"),
        Run("first", "sequential:api", "sequential", way="api"),
        # Both are one stream: as steady as its cap, and a minute long.
        Run("first", "sequential:stream", "stream", way="stream", rounds=1),
        Run("first", "torch:rclone", "load", "torch", "rclone", "empty"),
        *(Run("first", f"torch:{way}:bounded", "load", "torch", way, "empty", bounded=True) for way in _BOUNDED),
        Run("first", "safetensors:mount:no_cache", "load", "safetensors"),
        *(_run("first", "load", system, "empty") for system in (*systems, *direct)),
    ]


def _cached() -> list[Run]:
    direct = ("safetensors:api", "torch:fsspec", "dcp:fsspec")
    systems = [f"{name}:mount" for name in _LIBRARIES] + [*direct]
    return [
        *(_run("cached", "load", system, "filled") for system in systems),
        *(_run("cached", "load", f"{name}:local") for name in _LIBRARIES),
    ]


def _cached_direct() -> list[Run]:
    """Around the page cache, or into memory that is aligned to pages."""
    ours = [_run("cached_direct", "load", f"direct:{way}", "filled") for way in ("mount", "api")]
    return [*ours, _run("cached_direct", "load", "direct:local")]


def _warm_disk() -> list[Run]:
    """From and onto one local disk, so that no store binds."""
    return [Run("warm_disk", name, kind, way="local") for name, kind in (("stripefs", "warm"), ("copy", "copy"))]


def _four() -> list[Run]:
    shares = [_run("four", "share", f"{name}:mount", "empty") for name in ("direct", "direct_all", "safetensors")]
    return [*shares, Run("four", "fsspec", "share", "fsspec", "fsspec", "empty")]


def _run(case: str, kind: str, system: str, cache: str = "") -> Run:
    """Of the system NAME:WAY, whose format is called so too where a way needs one of its own."""
    name, _, way = system.partition(":")
    return Run(case, system, kind, system if way in ("api", "fsspec") else name, way, cache)


def choose(made: Sequence[Run], cases: Iterable[str]) -> list[Run]:
    """The runs of `cases`, all where none is named, and those of other cases that their ratios need."""
    wanted = set(cases) or set(CASES)
    keys = needed(ratios(), wanted)
    return [run for run in made if run.case in wanted or (run.case, run.system) in keys]


def name_of(run: Run) -> str:
    """The file or directory that it saves or loads, below the folder of all checkpoints."""
    return {"torch": "model.pt", "torch_mmap": "model.pt", "dcp": "dcp"}.get(
        run.format.partition(":")[0], "model.safetensors"
    )


def copies(chosen: Collection[Run]) -> dict[str, set[str]]:
    """Files (named by `name_of`) that must exist before the first run: "stored" in HDFS, "local" ones, and those
    "cached" on local disk."""
    found: dict[str, set[str]] = {"stored": {"model.safetensors"}, "local": set(), "cached": set()}
    for run in chosen:
        if run.kind in ("load", "warm", "copy"):
            found["local" if run.way == "local" else "stored"].add(name_of(run))
            if run.cache == "filled":
                found["cached"].add(name_of(run))
    return found


def room(chosen: Collection[Run]) -> int:
    """Room on disk that all of this takes at most, in sizes of a checkpoint: besides, one is being saved, one cache
    being filled."""
    return sum(map(len, copies(chosen).values())) + 2


def sequence(chosen: Sequence[Run], number: int) -> list[Run]:
    """The runs of the round `number`, in its order."""
    made = []
    for case in CASES:
        made += in_turn([run for run in chosen if run.case == case and number < run.rounds], number)
    return made


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    cached, local = time_of("cached", "safetensors:mount"), time_of("cached", "safetensors:local")
    first, seq = Key("first", "safetensors:mount"), Key("first", "sequential:mount")
    direct = time_of("cached_direct", "direct:local")
    cached_vs, fetched = "cached_load_vs_local_file", "four_processes_bytes_fetched_vs_file"
    made = [
        RatioPlan(cached_vs, cached, local, 1.15),
        RatioPlan("warm_then_load_vs_local_file", time_of("warmed", "safetensors:mount"), local, 1.3),
        RatioPlan("first_load_vs_bench_read_seq", first, seq, 0.85, at_least=True),
        RatioPlan(f"{fetched}_direct", Key("four", "direct:mount", "fetched_share"), None, 1.05),
        RatioPlan(f"{fetched}_fsspec", Key("four", "fsspec", "fetched_share"), None, 1.05),
        RatioPlan("runai_streamer_vs_seq", Key("first", "runai:mount"), seq, 0.8, at_least=True),
        RatioPlan("fastsafetensors_vs_seq", Key("first", "fastsafetensors:mount"), seq, 0.8, at_least=True),
        RatioPlan("dcp_load_vs_seq", Key("first", "dcp:mount"), seq, 0.8, at_least=True),
        RatioPlan("api_read_vs_mount_read", Key("first", "sequential:api"), seq, 0.97, at_least=True),
        RatioPlan("restart_same_node_vs_today", cached, time_of("first", "sequential:stream"), 0.15),
        RatioPlan("first_load_vs_bench_read_seq_no_cache", Key("first", "safetensors:mount:no_cache"), seq),
        RatioPlan("first_load_vs_today", time_of("first", "safetensors:mount"), time_of("first", "sequential:stream")),
        RatioPlan("first_load_vs_rclone_torch", time_of("first", "torch:mount"), time_of("first", "torch:rclone")),
    ]
    made += [
        RatioPlan(f"cached_{name}_vs_local_file", time_of("cached_direct", f"direct:{way}"), direct)
        for name, way in (("direct", "mount"), ("aligned_api", "api"))
    ]
    made.append(RatioPlan("warm_vs_disk", Key("warm_disk", "stripefs"), Key("warm_disk", "copy"), at_least=True))
    ours, theirs = (time_of("first", f"torch:{way}:bounded") for way in _BOUNDED)
    made.append(RatioPlan("first_load_vs_rclone_torch_equal_memory", ours, theirs))
    made += [
        RatioPlan(f"{fetched}_{name}", Key("four", f"{name}:mount", "fetched_share"), None)
        for name in ("direct_all", "safetensors")
    ]
    made += [
        RatioPlan(
            f"cached_load_vs_local_file_{name}", time_of("cached", f"{name}:mount"), time_of("cached", f"{name}:local")
        )
        for name in ("torch", "torch_mmap", "dcp", "runai", "fastsafetensors")
    ]
    for name in ("torch:mount", "torch_mmap:mount", "torch:fsspec", "torch:api", "dcp:fsspec", "safetensors:api"):
        label = name.replace(":mount", "").replace(":", "_")
        made.append(RatioPlan(f"{label}_load_vs_seq", Key("first", name), seq))
    return made


def _head(facts: Facts) -> str:
    loaders = ", ".join(f"{name} {version}" for name, version in facts["loaders"].items())
    return (
        f"{facts['rounds']} rounds; {facts['datanodes']} DataNodes behind {facts['rate_mb_s']:g} MB/s each; "
        f"checkpoints of {facts['file_mib']} MiB; budget {facts['budget_mib']} MiB; "
        f"read-ahead of the local disk {facts['read_ahead_kib']} KiB; memory {facts['memory_mib']} MiB; "
        f"{machine(facts, f'{hdfs(facts)}, {loaders}')}"
    )


def _chart(document: Document) -> Bars:
    rows = {label: document.row(case, system, "time") for (case, system), label in CHARTED.items()}
    facts = document.environment
    return Bars(
        [Bar(label, row, ours=label.startswith("stripefs")) for label, row in rows.items() if row],
        of="loads",
        title=f"Loading a checkpoint of {facts['file_mib']} MiB from {facts['datanodes']} DataNodes of "
        f"{facts['rate_mb_s']:g} MB/s each",
        scale="seconds: median with lowest and highest round",
        width=8,
        height=0.45,
    )


REPORT = Report(
    ratios=ratios(),
    columns=("time", "throughput", "fetched", "kept", "warm_time", "cpu_per_gb"),
    metrics={"fetched": Metric("MB", "MB fetched", 0)},
    cases=CASES,
    head=_head,
    chart=_chart,
)
