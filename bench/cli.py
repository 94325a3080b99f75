"""The command `bench`. Results go to standard output, progress and errors (one line) to standard error.

Exit codes: 0 done (also when a target is missed: that is a result), 1 what the line says, 2 a wrong argument.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

from bench import peers, read, report, simulate, tables
from bench.checkpoint import measure as loading_measure
from bench.checkpoint import report as checkpoint_report
from bench.checkpoint.plan import CASES as CHECKPOINT_CASES
from bench.cluster import BenchError
from bench.compile import report as compile_report
from bench.container import report as container_report
from bench.data import CHUNK
from bench.deps import report as deps_report
from bench.fleet import report as fleet_report
from bench.image import report as image_report
from bench.plan import CASES
from bench.results import Document, load
from bench.rounds import Options
from bench.startup import report as startup_report
from bench.startup.plan import FLEET as STARTUP_FLEET
from bench.startup.plan import SYSTEMS as STARTUP_SYSTEMS
from bench.write import measure as writing_measure
from bench.write import report as write_report
from bench.write.plan import CASES as WRITE_CASES
from stripefs.errors import StripefsError
from stripefs.read.policy import Limits
from stripefs.settings import ReadSettings
from stripefs.units import format_size, parse_duration, parse_rate, parse_size

__all__ = ["main"]

_Store = Callable[[Document], None]


class _Report(Protocol):
    """A module that shows documents of one benchmark."""

    def text(self, document: Document, /) -> str: ...
    def markdown(self, document: Document, /) -> str: ...
    def marks(self, document: Document, /) -> str: ...
    def chart(self, document: Document, file: Path, /) -> None: ...


_REPORTS: dict[str, _Report] = {
    "read": report,
    "write": write_report,
    "checkpoint": checkpoint_report,
    "image": image_report,
    "container": container_report,
    "deps": deps_report,
    "fleet": fleet_report,
    "compile": compile_report,
    "startup": startup_report,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # so that mounts and the cluster are taken down
    try:
        _COMMANDS[options.command](options)
    except (BenchError, StripefsError, ValueError, OSError) as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Benchmarks; docs/benchmarks.md tells what they mean.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="NAME")
    reading = commands.add_parser("read", help="reading big files from HDFS, against raw clients and rclone")
    reading.add_argument("--quick", action="store_true", help="smaller files, fewer systems, two rounds: 5 minutes")
    reading.add_argument("--case", action="append", default=[], choices=CASES, help="only this case (may be repeated)")
    reading.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each run (3, quick: 2)")
    reading.add_argument(
        "--json", type=Path, metavar="FILE", help="write the document here, anew after each group of runs"
    )
    reading.add_argument("--chart", type=Path, metavar="FILE", help="draw sequential reading here (.svg, .png)")
    reading.add_argument("--name", default="bench", help="of the HDFS instance; one that runs already is used")
    reading.add_argument("--keep", action="store_true", help="leave the instance and its files for the next run")
    writing = commands.add_parser("write", help="writing big files to HDFS, against raw clients and rclone")
    writing.add_argument("--quick", action="store_true", help="smaller files, fewer systems, two rounds")
    writing.add_argument("--case", action="append", default=[], choices=WRITE_CASES, help="only this case (repeatable)")
    writing.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each run (3, quick: 2)")
    writing.add_argument("--size", type=parse_size, default=0, help="of each file (2GiB, quick: 256MiB)")
    writing.add_argument("--files", type=int, default=0, metavar="N", help="that are listed (10000, quick: 1000)")
    writing.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each round")
    writing.add_argument("--chart", type=Path, metavar="FILE", help="draw the writes here (.svg, .png)")
    writing.add_argument("--name", default="bench", help="of the HDFS instance; one that runs already is used")
    writing.add_argument("--keep", action="store_true", help="leave the instance for the next run")
    loading = commands.add_parser("checkpoint", help="checkpoints saved and loaded by torch and others, with a cache")
    loading.add_argument("--quick", action="store_true", help="256 MiB, what the targets need, two rounds: 4 minutes")
    loading.add_argument("--large", action="store_true", help="8 GiB, what the targets need, one round")
    loading.add_argument("--case", action="append", default=[], choices=CHECKPOINT_CASES, help="only this (repeatable)")
    loading.add_argument("--rounds", type=int, default=0, metavar="N", help="of each run (3, quick: 2, large: 1)")
    loading.add_argument("--size", type=parse_size, default=0, help="of each checkpoint (2GiB)")
    loading.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each round")
    loading.add_argument("--chart", type=Path, metavar="FILE", help="draw the loads here (.svg, .png)")
    loading.add_argument("--name", default="bench", help="of the HDFS instance; one that runs already is used")
    loading.add_argument("--keep", action="store_true", help="leave the instance for the next run")
    for name, what in (
        ("image", "starting a container from a remote image, lazily and otherwise"),
        ("container", "the same by containerd, with our snapshotter, overlayfs and others"),
    ):
        starting = commands.add_parser(name, help=what)
        starting.add_argument("--quick", action="store_true", help="an image of numpy alone, two rounds: 5 minutes")
        starting.add_argument("--large", action="store_true", help="torch as well: 1.8 GB unpacked")
        starting.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each start (3, quick: 2)")
        starting.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each part")
        starting.add_argument("--chart", type=Path, metavar="FILE", help="draw the starts here (.svg, .png)")
        starting.add_argument(
            "--work", type=Path, metavar="DIR", help="where images are kept (~/.cache/bootseer/bench-image)"
        )
        starting.add_argument("--mirror", default="", metavar="URL", help="a Debian archive; apt's own where not given")
    installing = commands.add_parser("deps", help="dependencies of a job: installed, or mounted from a snapshot")
    installing.add_argument("--quick", action="store_true", help="a few small packages, two rounds: 3 minutes")
    installing.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each start (3, quick: 2)")
    installing.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each round")
    installing.add_argument("--chart", type=Path, metavar="FILE", help="draw the starts here (.svg, .png)")
    installing.add_argument(
        "--work", type=Path, metavar="DIR", help="where wheels are kept (~/.cache/bootseer/bench-deps)"
    )
    growing = commands.add_parser("fleet", help="a model of large fleets, checked against small ones")
    growing.add_argument("--quick", action="store_true", help="two nodes, a smaller image, two rounds: 1 minute")
    growing.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each fleet (3, quick: 2)")
    growing.add_argument("--from", type=Path, dest="startup", metavar="FILE.json",
                         help="a document of `bench startup`, from which large fleets are simulated")  # fmt: skip
    growing.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each part")
    growing.add_argument("--chart", type=Path, metavar="FILE", help="draw the growth here (.svg, .png)")
    growing.add_argument("--work", type=Path, metavar="DIR", help="where it works (~/.cache/bootseer/bench-fleet)")
    for name, rate, what in (
        ("store", "2.5GB/s", "of the store's way out"),
        ("node", "2.5GB/s", "of each node's link"),
        ("mirror", "2.5GB/s", "of each mirror"),
        ("datanode", "200MB/s", "of each DataNode"),
    ):
        growing.add_argument(f"--{name}", type=parse_rate, default=rate, metavar="RATE", help=f"{what} ({rate})")
    growing.add_argument("--datanodes", type=int, default=20, metavar="N", help="DataNodes at least (20)")
    growing.add_argument("--nodes-per-datanode", type=int, default=4, metavar="N", help="a DataNode for so many (4)")
    growing.add_argument("--replication", type=int, default=3, metavar="N", help="copies of each block (3)")
    growing.add_argument("--failures", type=float, default=1e-4, metavar="P", help="that a MiB does not come (0.0001)")
    compiling = commands.add_parser("compile", help="what a start compiles: anew, or found in start-up caches")
    compiling.add_argument("--quick", action="store_true", help="a smaller model, two rounds: 2 minutes")
    compiling.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each start (3, quick: 2)")
    compiling.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each round")
    compiling.add_argument("--chart", type=Path, metavar="FILE", help="draw the starts here (.svg, .png)")
    compiling.add_argument(
        "--work", type=Path, metavar="DIR", help="where images are kept (~/.cache/bootseer/bench-compile)"
    )
    job = commands.add_parser(
        "startup", help="a whole job from its image to its first step, today and by each technique"
    )
    job.add_argument("--quick", action="store_true", help="a small job, two DataNodes, one round: a minute")
    job.add_argument("--large", action="store_true", help="torch in the image, and in the job")
    job.add_argument("--gpu", action="store_true", help="load the checkpoint into the memory of an accelerator")
    job.add_argument(
        "--only",
        action="append",
        default=[],
        choices=(*STARTUP_SYSTEMS, STARTUP_FLEET),
        help="only this system, or the nodes that start together (repeatable)",
    )
    job.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each start (3, quick: 1)")
    job.add_argument("--json", type=Path, metavar="FILE", help="write the document here, anew after each round")
    job.add_argument("--chart", type=Path, metavar="FILE", help="draw the starts here (.svg, .png)")
    job.add_argument("--name", default="startup", help="how the name of the HDFS instance begins")
    job.add_argument("--keep", action="store_true", help="leave the instance and its files for the next run")
    job.add_argument("--work", type=Path, metavar="DIR", help="where nodes are made (~/.cache/bootseer/bench-startup)")
    job.add_argument("--images", type=Path, metavar="DIR", help="where images are kept (~/.cache/bootseer/bench-image)")
    job.add_argument("--mirror", default="", metavar="URL", help="a Debian archive; apt's own where not given")
    table = commands.add_parser("table", help="print the tables of a document as Markdown")
    table.add_argument("document", type=Path, metavar="FILE.json")
    table.add_argument("--into", type=Path, metavar="FILE.md", help="put them there, between its marks for results")
    table.add_argument("--chart", type=Path, metavar="FILE", help="draw the benchmark's chart here as well")
    simulating = commands.add_parser("simulate", help="the reader's policy against simulated hosts, and its settings")
    simulating.add_argument("--size", type=parse_size, default="2GiB", help="of the file")
    simulating.add_argument("--block-size", type=parse_size, default="8MiB")
    simulating.add_argument("--replication", type=int, default=1)
    simulating.add_argument("--hosts", type=int, default=8)
    simulating.add_argument("--rate", type=parse_rate, default="40MB/s", help="of each host")
    simulating.add_argument("--latency", type=parse_duration, default="5ms", help="before a host's first byte")
    simulating.add_argument("--budget", type=parse_size, default="1GiB")
    simulating.add_argument("--seeds", type=int, default=5, help="how many random placements")
    commands.add_parser("build-rclone", help="build the pinned rclone, once")
    return parser


def _need_root(options: argparse.Namespace, what: str) -> None:
    if os.geteuid() != 0:
        raise BenchError(f"{what} and page caches need root: sudo ./scripts/bench {options.command}")


def _show(options: argparse.Namespace, measure: Callable[[_Store], Document]) -> None:
    """Measure, keeping in --json what there is so far, and print and draw the whole."""

    def store(document: Document) -> None:
        if options.json:
            options.json.write_text(document.to_json())

    document = measure(store)
    print(_REPORTS[document.bench].text(document), end="")
    if options.chart:
        _REPORTS[document.bench].chart(document, options.chart)


def _read(options: argparse.Namespace) -> None:
    _need_root(options, "network namespaces")
    chosen = Options(options.quick, tuple(options.case), options.rounds, options.name, options.keep)
    _show(options, partial(read.run, chosen, _say))


def _write(options: argparse.Namespace) -> None:
    _need_root(options, "network namespaces")
    if options.size % CHUNK:
        raise BenchError(f"--size must be a multiple of {format_size(CHUNK)}")
    chosen = writing_measure.WriteOptions(
        options.quick,
        tuple(options.case),
        options.rounds,
        options.name,
        options.keep,
        options.size,
        options.files,
    )
    _show(options, partial(writing_measure.measure, chosen, _say))


def _checkpoint(options: argparse.Namespace) -> None:
    _need_root(options, "network namespaces")
    if options.quick and options.large:
        raise BenchError("--quick and --large are two sizes: choose one")
    if options.size % CHUNK:
        raise BenchError(f"--size must be a multiple of {format_size(CHUNK)}")
    chosen = loading_measure.CheckpointOptions(
        options.quick,
        tuple(options.case),
        options.rounds,
        options.name,
        options.keep,
        options.size,
        options.large,
    )
    _show(options, partial(loading_measure.measure, chosen, _say))


def _image(options: argparse.Namespace) -> None:
    from bench.image import measure

    _need_root(options, "containers, mounts")
    if options.quick and options.large:
        raise BenchError("--quick and --large are two images: choose one")
    work = (options.work or measure.WORK).absolute()
    chosen = measure.Options(options.quick, options.large, options.rounds, work, options.mirror)
    _show(options, partial(measure.measure, chosen, _say))


def _container(options: argparse.Namespace) -> None:
    from bench.container import measure

    _need_root(options, "containers, mounts")
    if options.quick and options.large:
        raise BenchError("--quick and --large are two images: choose one")
    work = (options.work or measure.WORK).absolute()
    chosen = measure.Options(options.quick, options.large, options.rounds, work, options.mirror)
    _show(options, partial(measure.measure, chosen, _say))


def _deps(options: argparse.Namespace) -> None:
    from bench.deps import measure

    _need_root(options, "network namespaces, mounts")
    chosen = measure.Options(options.quick, options.rounds, (options.work or measure.WORK).absolute())
    _show(options, partial(measure.measure, chosen, _say))


def _fleet(options: argparse.Namespace) -> None:
    from bench.fleet import measure
    from bench.fleet.plan import Scenario

    _need_root(options, "network namespaces, mounts")
    names = ("store", "node", "mirror", "datanode", "datanodes", "nodes_per_datanode", "replication", "failures")
    scenario = Scenario(**{name: getattr(options, name) for name in names})
    work = (options.work or measure.WORK).absolute()
    chosen = measure.Options(options.quick, options.rounds, work, options.startup, scenario)
    _show(options, partial(measure.measure, chosen, _say))


def _compile(options: argparse.Namespace) -> None:
    from bench.compile import measure

    _need_root(options, "containers, mounts")
    chosen = measure.Options(options.quick, options.rounds, (options.work or measure.WORK).absolute())
    _show(options, partial(measure.measure, chosen, _say))


def _startup(options: argparse.Namespace) -> None:
    from bench.startup import measure

    _need_root(options, "containers, network namespaces, mounts")
    if options.quick and options.large:
        raise BenchError("--quick and --large are two sizes: choose one")
    chosen = measure.Options(
        options.quick,
        options.large,
        options.gpu,
        tuple(options.only),
        options.rounds,
        options.name,
        options.keep,
        (options.work or measure.WORK).absolute(),
        (options.images or measure.IMAGES).absolute(),
        options.mirror,
    )
    _show(options, partial(measure.measure, chosen, _say))


def _table(options: argparse.Namespace) -> None:
    document = load(options.document)
    if document.bench not in _REPORTS:
        raise BenchError(f"{options.document} is of a benchmark {document.bench!r}, which is not known here")
    found = _REPORTS[document.bench]
    if options.into:
        page = options.into.read_text()
        options.into.write_text(tables.insert(page, found.markdown(document), found.marks(document)))
    else:
        print(found.markdown(document), end="")
    if options.chart:
        found.chart(document, options.chart)


def _simulate(options: argparse.Namespace) -> None:
    defaults = ReadSettings()
    limits = Limits(
        options.budget, defaults.range_size, defaults.threads, defaults.per_host, defaults.io_timeout, defaults.hedge
    )
    given = (options.size, options.block_size, options.replication, options.hosts, options.rate, options.latency)
    print(simulate.compare(simulate.Scenario(*given, limits), options.seeds))


def _build_rclone(_options: argparse.Namespace) -> None:
    print(peers.build_rclone(_say))


_COMMANDS = {
    "read": _read,
    "write": _write,
    "checkpoint": _checkpoint,
    "image": _image,
    "container": _container,
    "deps": _deps,
    "fleet": _fleet,
    "compile": _compile,
    "startup": _startup,
    "table": _table,
    "simulate": _simulate,
    "build-rclone": _build_rclone,
}


def _say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
