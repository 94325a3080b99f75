"""Small sets of events and the reports on them, as version 1 of the document has them, in tests/golden/startup; and the
events that samples of other tools become.

`python -m tests.unit.imagefs.startup.golden` writes the reports and the imported events anew, which is right only if
their change is intended. Events that reports are made of are written only where there are none.
"""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from bench.startup.synthetic import Fleet
from imagefs.cli.startup import command
from imagefs.cli.startup.report import report_text
from imagefs.startup.analysis import Gpus, analyse
from imagefs.startup.report import Report
from tests.support.checkout import CHECKOUT
from tests.unit.imagefs.startup.events import event, file, fleet, span

__all__ = ["FOLDER", "IMPORTS", "SAMPLES", "SETS", "imported", "made"]

FOLDER = CHECKOUT / "tests/golden/startup"
COST = Gpus(price=2.0, run_length_s=3600.0)


def damaged() -> bytes:
    """One node of a run with one of each defect that files may have, but a huge line, which `made` adds."""
    first = span(0, 4, "image", "attach", rank=None, source="imagefs", seq=0)
    late = span(40, 60, "checkpoint", "optimizer", seq=9)
    lines = [
        first,
        first,  # again, as after a second collection
        b"\x00\xff garbage\n",
        b"[1, 2]\n\n",
        b'{"level": "info", "message": "not an event"}\n',
        b'{"event": "begin", "stage": "model"\n',
        event(4, "begin", "imports", "torch", seq=0, span="i", future={"unknown": [1]}),
        event(9, "end", "imports", "torch", seq=1, span="i", v=2),
        event(9, "begin", "model", "half a \ud800 pair", seq=2, span="m", v=None),
        event(11, "end", "model", "half a \ud800 pair", seq=3, span="m", pid="two"),
        event(21, "end", "checkpoint", "model.bin", seq=5, span="c", facts={"store_bytes": 10**9}),
        event(11, "begin", "checkpoint", "model.bin", seq=4, span="c"),
        event(12, "begin", "checkpoint", "its end was lost", seq=6, span="l"),
        event(22, "end", "rendezvous", "its begin was lost", seq=8, span="e"),
        event(25, "instant", "dropped", seq=10, facts={"events": 3, "cause": "queue"}),
        span(2, 3, "container", "exec", rank=None, run=None, source="imagefs"),
        event(30, "instant", "ready", seq=11),
        late,
        event(61, "begin", "first_batch", seq=12)[:-40],
    ]
    return b"".join(lines)


SETS = {
    "straggler": lambda: fleet(Fleet(4, cause="datanode", victim=2, seed=4)),
    "skew": lambda: fleet(Fleet(4, cause="clock", victim=1, seed=6)),
    "damaged": damaged,
}


SAMPLES = Path(__file__).with_name("samples")
ORIGIN = ["--origin", "Mon 2026-03-02 08:00:00 UTC"]
IMPORTS = {
    "containerd": ["gpu-03.events"],
    "csv": ["wide.csv", "--mapping", str(SAMPLES / "mapping.toml")],
    "kubernetes": ["kubernetes.json"],
    "otlp": ["collector.jsonl", "--stage", "load*=checkpoint"],
    "slurm": ["sacct.txt", "--zone", "Europe/Berlin"],
    "systemd-blame": ["node7.blame", *ORIGIN],
    "systemd-plot": ["node7.json", *ORIGIN],
    "systemd-time": ["node7.time", *ORIGIN],
}


def imported(name: str) -> str:
    """The events of a sample, a line each, and what the command says of the rest."""
    sample, *more = IMPORTS[name]
    found = CliRunner().invoke(command, ["import", name.partition("-")[0], str(SAMPLES / sample), *more])
    return found.stdout + found.stderr.replace(f"{SAMPLES}/", "")


def made(name: str) -> tuple[Report, str]:
    """The report on a committed set, and its text. Of `damaged` the third line is a huge one."""
    data = (FOLDER / f"{name}.jsonl").read_bytes()
    if name == "damaged":
        lines = data.splitlines(keepends=True)
        data = b"".join([*lines[:2], b'{"event": "' + b"x" * (3 << 20) + b'"}\n', *lines[2:]])
    report = analyse([("", [file(data, f"{name}.jsonl")])], gpus=COST)
    return report, report_text(report, 100)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each, events in SETS.items():
        if not (FOLDER / f"{each}.jsonl").exists():
            (FOLDER / f"{each}.jsonl").write_bytes(events())
        report, text = made(each)
        (FOLDER / f"{each}.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
        (FOLDER / f"{each}.txt").write_text(text)
    for each in IMPORTS:
        (FOLDER / f"import-{each}.txt").write_text(imported(each))
