"""Time of `imagefs startup report` over the events of a large start, against plain json.loads of the same lines.

The events are those of `bench.startup_fleet`, a file for each node. The report is a process of its own: interpreter,
imports and output count; of the parsing only reading the files and json.loads.
`python -m bench.startup_report` prints the figures; `measure` gives them to a larger benchmark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.startup_fleet import Fleet, lines

__all__ = ["RATIO", "Figures", "measure"]

RATIO = "report_5000_nodes_seconds_vs_json_parse"
_REPORT = "import sys; from imagefs.cli.main import run; sys.exit(run())"


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds of each round, and their ratio: the median over rounds."""

    nodes: int
    ranks: int
    events: int
    megabytes: float
    report_seconds: list[float]
    parse_seconds: list[float]
    ratio: float


def measure(folder: Path, nodes: int = 5000, ranks: int = 2, rounds: int = 5) -> Figures:
    """Write events into the folder, and time report and parsing in turn."""
    content: dict[str, list[bytes]] = {}
    for line in lines(Fleet(nodes, ranks, "datanode", victim=7, loss=0.0001)):
        content.setdefault(json.loads(line)["node"], []).append(line)
    for node, some in content.items():
        (folder / f"{node}.jsonl").write_bytes(b"".join(some))
    files = sorted(folder.iterdir())
    report_seconds, parse_seconds = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        for file in files:
            with file.open("rb") as opened:
                for line in opened:
                    json.loads(line)
        parsed = time.perf_counter()
        command = [sys.executable, "-c", _REPORT, "startup", "report", str(folder), "--json"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        report_seconds.append(time.perf_counter() - parsed)
        parse_seconds.append(parsed - begin)
    size = sum(len(line) for some in content.values() for line in some)
    ratios = [report / parse for report, parse in zip(report_seconds, parse_seconds, strict=True)]
    events = sum(map(len, content.values()))
    return Figures(nodes, ranks, events, size / 1e6, report_seconds, parse_seconds, statistics.median(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.startup_report", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each node")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.nodes, options.ranks, options.rounds)
    print(json.dumps({**asdict(figures), RATIO: figures.ratio}, indent=2))


if __name__ == "__main__":
    main()
