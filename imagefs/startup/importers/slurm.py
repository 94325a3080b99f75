"""Slurm accounting: `sacct --parsable2 --format=JobID,JobName,Submit,Eligible,Start,End,NNodes,NodeList[,Restarts]`.

sacct prints local times without their zone; they are read in --zone, or in that of this host.
"""

from __future__ import annotations

import re
from typing import Any

from imagefs.errors import FormatError
from imagefs.startup.importers.events import Imported, time_ns

__all__ = ["hosts", "read"]

_NEEDED = ("JobID", "Submit", "Start")
_NONE = ("", "Unknown", "None", "N/A", "None assigned")
_MANY = 100_000


def read(text: str, imported: Imported) -> None:
    """Each node of a job has `queue` spans from Submit to Start and, where steps are in the output, a `setup` span from
    Start to the Start of the first step."""
    lines = text.splitlines()
    heads = lines[0].split("|") if lines else []
    missing = [name for name in _NEEDED if name not in heads]
    if missing:
        raise FormatError(
            f"{imported.file} has no column {missing[0]} in its first line",
            hint="write it with sacct --parsable2 --format=JobID,JobName,Submit,Eligible,Start,End,NNodes,NodeList",
        )
    jobs: dict[str, tuple[int, dict[str, str]]] = {}
    steps: dict[str, int] = {}
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("|")
        with imported.row(number):
            if len(cells) != len(heads):
                raise ValueError(f"{len(cells)} fields, and the first line has {len(heads)}")
            row = dict(zip(heads, cells, strict=True))
            job, _, step = row["JobID"].partition(".")
            if not step:
                if row["Start"] in _NONE:
                    imported.pass_over("not started")
                else:
                    jobs[f"{job} {row['Submit']}"] = number, row
            elif step.isdecimal() and row["Start"] not in _NONE:
                at = time_ns(row["Start"], imported.given.zone)
                steps[job] = min(at, steps.get(job, at))
            else:
                imported.pass_over(f"step {step}")
    for number, row in jobs.values():
        with imported.row(number):
            _job(row, steps.get(row["JobID"]), imported)


def _job(row: dict[str, str], step: int | None, imported: Imported) -> None:
    zone = imported.given.zone
    submit, start = time_ns(row["Submit"], zone), time_ns(row["Start"], zone)
    eligible = submit if row.get("Eligible", "") in _NONE else time_ns(row["Eligible"], zone)
    if start < submit:
        raise ValueError(f"Start {row['Start']} is before Submit {row['Submit']}")
    restarts = row.get("Restarts", "")
    who: dict[str, Any] = {"job": row.get("JobName", ""), "run": row["JobID"],
                           "attempt": int(restarts) if restarts.isdecimal() else None}  # fmt: skip
    nodes = [] if row.get("NodeList", "") in _NONE else hosts(row["NodeList"])
    count = row.get("NNodes", "")
    if nodes and count.isdecimal() and int(count) != len(nodes):
        raise ValueError(f"NNodes is {count}, and NodeList {row['NodeList']} has {len(nodes)}")
    facts = {"cause": "queue", "nodes": int(count) if count.isdecimal() else len(nodes) or None}
    facts = {key: value for key, value in facts.items() if value}
    begun = min(max(submit, eligible), start)
    for node in nodes or [""]:
        if submit < begun:
            imported.span("queue", "not eligible", submit, begun, kind="wait", facts=facts, node=node, **who)
        imported.span("queue", "eligible", begun, start, kind="wait", facts=facts, node=node, **who)
        if node and step is not None and step >= start:
            imported.span("setup", "before the first step", start, step, node=node, **who)


def hosts(text: str) -> list[str]:
    """The names that a host list such as `gpu[001-003,7],login1` stands for. Raises ValueError."""
    names = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        grown = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else [one for piece in ranges.split(",") for one in _range(piece)]
            if len(grown) * len(ends) > _MANY:
                raise ValueError(f"the host list {text} names more than {_MANY} nodes")
            grown = [name + end for name in grown for end in ends]
        names += grown
    return names


def _range(piece: str) -> list[str]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
    if not found or int(found[2] or found[1]) - int(found[1]) not in range(_MANY):
        raise ValueError(f"{piece!r} is no range of a host list")
    return [f"{number:0{len(found[1])}}" for number in range(int(found[1]), int(found[2] or found[1]) + 1)]
