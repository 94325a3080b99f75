"""The plan of `bench startup`: sizes, systems made of techniques, ratios with their targets, the report. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.harness.data import MIB, DataFile, tensor_elements
from bench.harness.report import Bar, Bars, Facts, Report, machine, tools
from bench.harness.results import Document, Key, Metric, RatioPlan

__all__ = [
    "CASE",
    "EVENTS",
    "FLEET",
    "NODES",
    "RATE",
    "REPORT",
    "REPORT_TIME",
    "SIZES",
    "STAGES",
    "SYSTEMS",
    "Size",
    "System",
    "chosen",
    "ratios",
]

RATE = 50e6  # bytes a second from registry, index and store
DATANODE_RATE = 40e6
CASE, FLEET, EVENTS, REPORT_TIME = "start", "four_nodes", "events", "report_5000"
NODES = 4
STAGES = ("image", "dependencies", "checkpoint")

_BLOCK = 8 * MIB
_MODULES = ("numpy", "pandas", "pyarrow", "datasets", "transformers", "tokenizers", "wandb", "pydantic", "requests")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the job. packages: names of pinned distributions, empty for all; `shards` of `shard_size` bytes.

    hot: whether imports touch so many places of the packages' snapshot that it gets a hot device.
    """

    name: str
    image_modules: tuple[str, ...]
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    shards: int
    shard_size: int
    datanodes: int
    framework: Literal["numpy", "torch"] = "numpy"
    hot: bool = True

    @property
    def files(self) -> list[DataFile]:
        """The checkpoint in HDFS, in files of safetensors as models are published."""
        return [
            DataFile(
                f"startup-{self.name}/model-{number:05}-of-{self.shards:05}.safetensors",
                self.shard_size,
                _BLOCK,
                safetensors=True,
            )
            for number in range(1, self.shards + 1)
        ]

    @property
    def tensors(self) -> dict[str, int]:
        """Elements of 16 bits of each tensor of one shard."""
        return tensor_elements(self.shard_size)


_QUICK = ("markdown-it-py", "mdurl", "pygments", "rich")
_IMAGE = ("numpy", "scipy.sparse", "safetensors")

SIZES = {
    size.name: size
    for size in (
        Size(
            "quick",
            ("numpy", "safetensors"),
            _QUICK,
            ("rich.console", "markdown_it"),
            2,
            32 * MIB,
            2,
            hot=False,
        ),
        Size("standard", _IMAGE, (), _MODULES, 8, 256 * MIB, 8),
        Size("large", (*_IMAGE, "torch"), (), _MODULES, 8, 256 * MIB, 8, "torch"),
    )
}


@dataclass(frozen=True, slots=True)
class System:
    """A way to start a job: one technique for each stage.

    image: "pull" (containerd pulls and unpacks, then runs), "parallel" (skopeo fetches layers at once, which are
    unpacked at once, runc runs) or "lazy" (imagefs run, with what was recorded). dependencies: "pip" or "uv" install in
    the container, "snapshot" mounts. checkpoint: "stream" (one stream of hdfs-native), "get" (`hdfs dfs -get` of all
    shards at once), "mount" (stripefs), "warmed" (the same, brought into the node's cache from the start's beginning).
    again: on a node that has had the job before, its page cache empty.
    """

    name: str
    words: str
    image: Literal["pull", "parallel", "lazy"] = "pull"
    dependencies: Literal["pip", "uv", "snapshot"] = "pip"
    checkpoint: Literal["stream", "get", "mount", "warmed"] = "stream"
    again: bool = False


SYSTEMS = {
    system.name: system
    for system in (
        System("all", "all together, fresh node", "lazy", "snapshot", "warmed"),
        System("all:again", "all together, same node", "lazy", "snapshot", "warmed", again=True),
        System("image", "today, but the image lazily", image="lazy"),
        System("dependencies", "today, but a dependency snapshot", dependencies="snapshot"),
        System("checkpoint", "today, but stripefs", checkpoint="mount"),
        System("by_hand", "best by hand", "parallel", "uv", "get"),
        System("today", "today"),
    )
}
"""In the order of tables."""


def chosen(only: tuple[str, ...]) -> list[System]:
    """The systems to measure; `only` empty means all. A second start follows a first one, and brings it along."""
    wanted = set(only) | {name.partition(":")[0] for name in only}
    return [system for name, system in SYSTEMS.items() if not only or name in wanted]


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    made = [
        _of("total_vs_today", "all", "today", bound=0.30),
        _of("total_vs_best_by_hand", "all", "by_hand", bound=0.5),
        _of("total_same_node_vs_today", "all:again", "today", bound=0.12),
        *(
            _of(f"{_short(stage)}_stage_vs_today", stage, "today", _metric(stage), bound)
            for stage, bound in zip(STAGES, (0.25, 0.15, 0.25), strict=True)
        ),
        RatioPlan("overlap_gain", Key(CASE, "all"), Key(CASE, "techniques", "time"), 0.85),
        RatioPlan("slowest_of_4_nodes_vs_median", Key(FLEET, "all", "slowest"), Key(FLEET, "all", "median"), 1.2),
        RatioPlan("events_overhead", Key(EVENTS, "own"), Key(EVENTS, "plain"), 1.01),
        RatioPlan(
            "report_5000_nodes_seconds_vs_json_parse", Key(REPORT_TIME, "report"), Key(REPORT_TIME, "json_parse"), 2.0
        ),
        RatioPlan("events_overhead_traced", Key(EVENTS, "traced"), Key(EVENTS, "plain")),
        _of("by_hand_vs_today", "by_hand", "today"),
        *(_of(f"{_short(name)}_alone_total_vs_today", name, "today") for name in STAGES),
        *(_of(f"{_short(stage)}_stage_vs_best_by_hand", stage, "by_hand", _metric(stage)) for stage in STAGES),
        RatioPlan("cpu_vs_today", Key(CASE, "all", "cpu"), Key(CASE, "today", "cpu")),
        RatioPlan("four_nodes_slowest_vs_one", Key(FLEET, "all", "slowest"), Key(CASE, "all", "time")),
    ]
    return [RatioPlan(one.name, _timed(one.upper), one.lower and _timed(one.lower), one.bound) for one in made]


def _of(name: str, upper: str, lower: str, metric: str = "time", bound: float = 0.0) -> RatioPlan:
    return RatioPlan(name, Key(CASE, upper, metric), Key(CASE, lower, metric), bound)


def _timed(key: Key) -> Key:
    return Key(key.case, key.system, "time") if key.metric == "throughput" else key


def _short(stage: str) -> str:
    return "deps" if stage == "dependencies" else stage


def _metric(stage: str) -> str:
    return f"{stage}_stage"


def _head(facts: Facts) -> str:
    job = facts["job"]
    return (
        f"job {job['name']}: an image of {job['image_mb']:g} MB compressed in "
        f"{job['layers']} layers, {job['packages']} packages, a checkpoint of {job['checkpoint_mib']} MiB in "
        f"{job['shards']} files, {job['framework']}{' into an accelerator' if job['gpu'] else ''}; "
        f"{facts['datanodes']} DataNodes behind {facts['rate_mb_s']:g} MB/s each; {facts['rounds']} rounds. Link: "
        f"{facts['link']}. {machine(facts, tools(facts))} Job, services, servers and DataNodes share these CPUs."
    )


def _chart(document: Document) -> Bars:
    rows = {name: document.row(CASE, name, "time") for name in SYSTEMS}
    job = document.environment["job"]
    return Bars(
        [Bar(SYSTEMS[name].words, row, ours=name.startswith("all")) for name, row in rows.items() if row],
        of="starts",
        title=f"A job's start: {job['image_mb']:g} MB of image, {job['packages']} packages, "
        f"{job['checkpoint_mib']} MiB of checkpoint",
        scale="seconds until the first step is done: median, lowest and highest round",
        height=0.45,
    )


REPORT = Report(
    ratios=ratios(),
    columns=(
        "time",
        "image_stage",
        "dependencies_stage",
        "checkpoint_stage",
        "step_stage",
        "overlapped",
        "median",
        "slowest",
        "moved",
        "cpu",
        "datanode_cpu",
    ),
    metrics={"cpu": Metric("s", "CPU s", 1)},
    cases=(CASE, FLEET),
    systems=[*SYSTEMS, "techniques"],
    head=_head,
    chart=_chart,
)
