"""The command `bench`. Results go to standard output, progress and errors (one line) to standard error.

Exit codes: 0 done (also when a target is missed: that is a result), 1 what the line says, 2 a wrong argument.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from bench.checkpoint.plan import CASES as CHECKPOINT_CASES
from bench.fleet.plan import Scenario
from bench.growth.plan import CASES as GROWTH_CASES
from bench.harness import ROOT, BenchError, peers
from bench.harness.data import CHUNK
from bench.harness.report import Report, insert
from bench.harness.results import Document, load
from bench.namenode.plan import CASES as NAMENODE_CASES
from bench.read import simulate
from bench.read.plan import CASES as READ_CASES
from bench.startup.plan import FLEET as STARTUP_FLEET
from bench.startup.plan import SYSTEMS as STARTUP_SYSTEMS
from bench.write.plan import CASES as WRITE_CASES
from stripefs.errors import StripefsError
from stripefs.read.planner.hosts import Limits
from stripefs.settings import ReadSettings
from stripefs.units import format_size, parse_duration, parse_rate, parse_size

__all__ = ["DOCS", "RESULTS", "main", "with_results"]

DOCS, RESULTS = ROOT / "docs/benchmarks.md", ROOT / "bench/results"

_BENCHMARKS = {
    "read": "reading big files from HDFS, against raw clients and rclone",
    "write": "writing big files to HDFS, against raw clients and rclone",
    "checkpoint": "checkpoints saved and loaded by torch and others, with a cache",
    "image": "starting a container from a remote image, lazily and otherwise",
    "container": "the same by containerd, with our snapshotter, overlayfs and others",
    "deps": "dependencies of a job: installed, or mounted from a snapshot",
    "fleet": "a model of large fleets, checked against small ones",
    "compile": "what a start compiles: anew, or found in start-up caches",
    "startup": "a whole job from its image to its first step, today and by each technique",
    "ceiling": "the mount itself: a store in memory, against the least that a mount costs",
    "namenode": "calls to the NameNode: for a GB that is read, and for small files",
    "growth": "how costs grow with files, blocks, images and readers",
}
_QUICK = {
    "read": "smaller files, fewer systems, two rounds: 5 minutes",
    "write": "smaller files, fewer systems, two rounds",
    "checkpoint": "256 MiB, what the targets need, two rounds: 4 minutes",
    "image": "an image of numpy alone, two rounds: 5 minutes",
    "container": "an image of numpy alone, two rounds: 5 minutes",
    "deps": "a few small packages, two rounds: 3 minutes",
    "fleet": "two nodes, a smaller image, two rounds: 1 minute",
    "compile": "a smaller model, two rounds: 2 minutes",
    "startup": "a small job, two DataNodes, one round: a minute",
    "ceiling": "a file of 256 MiB, two rounds: 2 minutes",
    "namenode": "fewer files, a smaller one to read, two rounds: 3 minutes",
    "growth": "without the largest size of each case, two rounds",
}
_LARGE = {
    "checkpoint": "8 GiB, what the targets need, one round",
    "image": "torch as well: 1.8 GB unpacked",
    "container": "torch as well: 1.8 GB unpacked",
    "startup": "torch in the image, and in the job",
}
_USUAL_ROUNDS = {"checkpoint": "3, quick: 2, large: 1", "startup": "3, quick: 1"}
_CASES = {
    "read": READ_CASES,
    "write": WRITE_CASES,
    "checkpoint": CHECKPOINT_CASES,
    "namenode": NAMENODE_CASES,
    "growth": GROWTH_CASES,
}
_WORK = {"container": "bench-image"}  # where that of another benchmark is used
_MIRRORED = ("image", "container", "startup")
_SCENARIO = ("store", "node", "mirror", "datanode", "datanodes", "nodes_per_datanode", "replication", "failures")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # so that mounts and the cluster are taken down
    try:
        {"table": _table, "simulate": _simulate, "build-rclone": _build_rclone}.get(given.command, _measure)(given)
    except (BenchError, StripefsError, ValueError, OSError) as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


# -- arguments ---------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Benchmarks; docs/benchmarks.md tells what they mean.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="NAME")
    made = {name: commands.add_parser(name, help=words) for name, words in _BENCHMARKS.items()}
    for name, benchmark in made.items():
        _add_common(benchmark, name)
    for name, usual in (("write", "2GiB, quick: 256MiB"), ("checkpoint", "2GiB")):
        made[name].add_argument("--size", type=parse_size, default=0, help=f"of each file ({usual})")
    made["write"].add_argument(
        "--files", type=int, default=0, dest="listed", metavar="N", help="that are listed (10000, quick: 1000)"
    )
    _add_fleet(made["fleet"])
    made["ceiling"].add_argument(
        "--profile", type=Path, metavar="FILE", help="write the stacks of stripefs under one reader here, folded"
    )
    job = made["startup"]
    job.add_argument("--gpu", action="store_true", help="load the checkpoint into the memory of an accelerator")
    job.add_argument(
        "--only",
        action="append",
        default=[],
        choices=(*STARTUP_SYSTEMS, STARTUP_FLEET),
        help="only this system, or the nodes that start together (repeatable)",
    )
    job.add_argument(
        "--images", type=_folder, metavar="DIR", help="where images are kept (~/.cache/bootseer/bench-image)"
    )
    table = commands.add_parser("table", help="the tables of documents as Markdown")
    table.add_argument(
        "document", type=Path, nargs="?", metavar="FILE.json",
        help="print its tables; where none is given those of all of bench/results go into docs/benchmarks.md",
    )  # fmt: skip
    table.add_argument("--into", type=Path, metavar="FILE.md", help="put them there, between its marks for results")
    table.add_argument("--chart", type=Path, metavar="FILE", help="draw the benchmark's chart here as well")
    _add_simulate(commands.add_parser("simulate", help="the reader's policy against simulated hosts, and its settings"))
    commands.add_parser("build-rclone", help="build the pinned rclone, once")
    return parser


def _add_common(parser: argparse.ArgumentParser, name: str) -> None:
    """The arguments that several benchmarks have."""
    usual = _USUAL_ROUNDS.get(name, "3, quick: 2")
    parser.add_argument("--quick", action="store_true", help=_QUICK[name])
    if name in _LARGE:
        parser.add_argument("--large", action="store_true", help=_LARGE[name])
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help=f"rounds of each run ({usual})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each part")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the benchmark's chart here (.svg, .png)")
    if name in _CASES:
        parser.add_argument(
            "--case", action="append", default=[], dest="cases", choices=_CASES[name], help="only this (repeatable)"
        )
    else:
        folder = f"~/.cache/bootseer/{_WORK.get(name, f'bench-{name}')}"
        parser.add_argument("--work", type=_folder, metavar="DIR", help=f"where it works ({folder})")
    if name in _CASES or name == "startup":
        parser.add_argument(
            "--name", default="startup" if name == "startup" else "bench",
            help="of the HDFS instance; one that runs already is used",
        )  # fmt: skip
        parser.add_argument("--keep", action="store_true", help="leave the instance and its files for the next run")
    if name in _MIRRORED:
        parser.add_argument("--mirror", default="", metavar="URL", help="a Debian archive; apt's own where not given")


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", type=Path, dest="startup", metavar="FILE.json",
                        help="a document of `bench startup`, from which large fleets are simulated")  # fmt: skip
    for name, rate, what in (
        ("store", "2.5GB/s", "of the store's way out"),
        ("node", "2.5GB/s", "of each node's link"),
        ("mirror", "2.5GB/s", "of each mirror"),
        ("datanode", "200MB/s", "of each DataNode"),
    ):
        parser.add_argument(f"--{name}", type=parse_rate, default=rate, metavar="RATE", help=f"{what} ({rate})")
    parser.add_argument("--datanodes", type=int, default=20, metavar="N", help="DataNodes at least (20)")
    parser.add_argument("--nodes-per-datanode", type=int, default=4, metavar="N", help="a DataNode for so many (4)")
    parser.add_argument("--replication", type=int, default=3, metavar="N", help="copies of each block (3)")
    parser.add_argument("--failures", type=float, default=1e-4, metavar="P", help="that a MiB does not come (0.0001)")


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=parse_size, default="2GiB", help="of the file")
    parser.add_argument("--block-size", type=parse_size, default="8MiB")
    parser.add_argument("--replication", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", type=parse_rate, default="40MB/s", help="of each host")
    parser.add_argument("--latency", type=parse_duration, default="5ms", help="before a host's first byte")
    parser.add_argument("--budget", type=parse_size, default="1GiB")
    parser.add_argument("--seeds", type=int, default=5, help="how many random placements")


def _folder(text: str) -> Path:
    return Path(text).absolute()


# -- commands ----------------------------------------------------------------------------------------------------------


def _measure(given: argparse.Namespace) -> None:
    """Measure, keeping in --json what there is so far, and print and draw the whole."""
    if os.geteuid() != 0:
        raise BenchError(f"namespaces, mounts and page caches need root: sudo ./scripts/bench {given.command}")
    if given.quick and getattr(given, "large", False):
        raise BenchError("--quick and --large are two sizes: choose one")
    if getattr(given, "size", 0) % CHUNK:
        raise BenchError(f"--size must be a multiple of {format_size(CHUNK)}")
    if given.command == "fleet":
        given.scenario = Scenario(**{name: getattr(given, name) for name in _SCENARIO})
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
    module = import_module(f"bench.{given.command}.measure")

    def store(document: Document) -> None:
        if given.json:
            given.json.write_text(document.to_json())

    document = module.measure(_options(module.Options, given), _say, store)
    report = _report(given.command)
    print(report.text(document), end="")
    if given.chart:
        report.draw(document, given.chart)


def _options(kind: Any, given: argparse.Namespace) -> Any:
    """Options of a benchmark: the arguments that are called like its fields, but for those that were not given."""
    named = {field.name: getattr(given, field.name) for field in fields(kind) if hasattr(given, field.name)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value
                   for name, value in named.items() if value is not None})  # fmt: skip


def _report(bench: str) -> Report:
    found: Report = import_module(f"bench.{bench}.plan").REPORT
    return found


def _loaded(file: Path) -> tuple[Document, Report]:
    """A document and its report. Raises BenchError where it is of no benchmark that there is."""
    document = load(file)
    if document.bench not in _BENCHMARKS:
        raise BenchError(f"{file} is of a benchmark {document.bench!r}, which is not known here")
    return document, _report(document.bench)


def _table(given: argparse.Namespace) -> None:
    if given.document is None:
        DOCS.write_text(with_results(DOCS.read_text(), RESULTS))
        return
    document, report = _loaded(given.document)
    if given.into:
        page = given.into.read_text()
        given.into.write_text(insert(page, report.markdown(document), report.section(document)))
    else:
        print(report.markdown(document), end="")
    if given.chart:
        report.draw(document, given.chart)


def with_results(page: str, folder: Path) -> str:
    """`page` with the tables of all documents in `folder` in their places; each is named after its place there.

    Raises BenchError for one that is not, ValueError for one that has no place.
    """
    for file in sorted(folder.glob("*.json")):
        document, report = _loaded(file)
        section = report.section(document)
        if file.stem != section.replace(" ", "-"):
            raise BenchError(f"{file} holds the results of {section}: call it {section.replace(' ', '-')}.json")
        page = insert(page, report.markdown(document), section)
    return page


def _simulate(given: argparse.Namespace) -> None:
    defaults = ReadSettings()
    limits = Limits(
        given.budget, defaults.range_size, defaults.threads, defaults.per_host, defaults.io_timeout, defaults.hedge
    )
    shape = (given.size, given.block_size, given.replication, given.hosts, given.rate, given.latency)
    print(simulate.compare(simulate.Scenario(*shape, limits), given.seeds))


def _build_rclone(_given: argparse.Namespace) -> None:
    print(peers.build_rclone(_say))


def _say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
